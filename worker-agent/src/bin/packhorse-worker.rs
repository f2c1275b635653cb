//! The Packhorse worker.
fn main() {}
