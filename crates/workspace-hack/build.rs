#![expect(
    missing_docs,
    reason = "a build script without a task: Cargo resolves build dependencies only where there is one"
)]
fn main() {}
