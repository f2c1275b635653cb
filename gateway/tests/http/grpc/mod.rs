//! The gRPC listener: real sockets, and clients that send what no client of the protocol would.

mod deadlines;
mod floods;
mod health;
mod keys;
mod order;
mod shutdown;
mod streams;
mod windows;
