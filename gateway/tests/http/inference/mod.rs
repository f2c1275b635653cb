//! The data plane from HTTP client to worker: a real listener and real sockets, with scripted workers.

mod bad_input;
mod batching;
mod disconnects;
mod drivers;
mod failures;
mod families;
mod infer;
mod links;
mod metadata;
mod overload;
mod pictures;
mod platforms;
mod prediction_cache;
mod shared_memory;
mod shutdown;
mod telemetry;
mod tenants;
mod texts;
mod versions;
