//! Tokens that one core makes in a second: `cargo bench -p packhorse-preprocess --bench texts -- tokenizer.json`.

use std::{env, fs, hint::black_box};

use packhorse_preprocess::Tokenizer;
use rustix::time::{ClockId, clock_gettime};

/// The rounds, of which the best counts.
const ROUNDS: usize = 20;
/// The texts of a round.
const TEXTS: usize = 200;

#[expect(
    clippy::print_stdout,
    reason = "a benchmark reports to whoever runs it"
)]
fn main() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/texts");
    let given = env::args()
        .skip(1)
        .find(|argument| !argument.starts_with('-'));
    let path = given.unwrap_or_else(|| format!("{folder}/wordpiece.json"));
    let file = fs::read(&path).expect("the argument is the path of a tokenizer.json");
    let tokenizer = Tokenizer::read(&file).expect("the argument is a tokenizer");
    let source = fs::read_to_string(format!("{folder}/texts.json")).expect("it is committed");
    let texts: Vec<String> = serde_json::from_str(&source).expect("it is a list of texts");
    let prose: String = texts.into_iter().filter(|text| text.is_ascii()).collect();
    let characters = prose.len();
    // 400 characters each, from other places of the prose.
    let text = |index: usize| {
        let twice = format!("{prose}{prose}");
        let from = index * 37 % characters;
        twice[from..from + characters.min(400)].to_owned()
    };
    let texts: Vec<String> = (0..TEXTS).map(text).collect();
    let mut tokens = 0;
    let best = (0..ROUNDS).map(|_| {
        let begin = processor_seconds();
        let made = texts
            .iter()
            .map(|text| tokenizer.tokens(text.as_bytes(), 512, true));
        tokens = made
            .map(|made| black_box(made).expect("it is a text").len())
            .sum();
        processor_seconds() - begin
    });
    let best = best.fold(f64::INFINITY, f64::min);
    println!(
        "{path}: {:.0} µs a text of {} tokens, {:.2} million tokens a second",
        best / TEXTS as f64 * 1e6,
        tokens / TEXTS,
        tokens as f64 / best / 1e6
    );
}

fn processor_seconds() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}
