//! Packhorse.
fn main() {}
