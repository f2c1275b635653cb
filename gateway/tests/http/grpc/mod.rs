//! The gRPC listener: real sockets, and clients that send what no client of the protocol would.

mod deadlines;
mod keys;
mod order;
mod streams;
