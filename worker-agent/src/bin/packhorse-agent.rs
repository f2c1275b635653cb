//! The Packhorse agent.
fn main() {}
