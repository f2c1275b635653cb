//! Crops of 224 pixels that one core makes in a second: `cargo bench -p packhorse-preprocess`.

use std::{fs, hint::black_box, path::Path};

use packhorse_cluster::{Datatype, ImagePreprocess};
use packhorse_preprocess::{Head, write_row};
use rustix::time::{ClockId, clock_gettime};

/// The rounds, of which the best counts.
const ROUNDS: usize = 20;

#[expect(
    clippy::print_stdout,
    reason = "a benchmark reports to whoever runs it"
)]
fn main() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/pictures");
    let declared = r#"{"resize":{"shortest":256},"crop":[224,224],"rescale":0.00392156862745098,
        "mean":[0.485,0.456,0.406],"std":[0.229,0.224,0.225]}"#;
    let declared: ImagePreprocess = serde_json::from_str(declared).expect("it is written above");
    for name in ["bench.jpg", "bench.png", "bench.webp"] {
        let bytes = fs::read(folder.join(name)).expect("the pictures are committed");
        let best = (0..ROUNDS).map(|_| {
            let begin = processor_seconds();
            let head = Head::read(&bytes).expect("it is a picture");
            let mut row = Vec::new();
            write_row(&bytes, &head, &declared, Datatype::Fp32, &mut row).expect("it is whole");
            black_box(row);
            processor_seconds() - begin
        });
        let best = best.fold(f64::INFINITY, f64::min);
        let kilobytes = bytes.len() / 1000;
        println!(
            "{name}, {kilobytes} kB: {:.2} ms, {:.0} crops a second",
            best * 1e3,
            1.0 / best
        );
    }
}

fn processor_seconds() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}
