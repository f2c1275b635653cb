//! Everything the command says: results on standard output, progress on standard error.
//!
//! Results go through [`line`] and [`json`], which report a closed pipe instead of panicking as `println!` does.

use std::{
    fmt::Display,
    io::{self, Write},
};

use comfy_table::{ContentArrangement, Table, presets};
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;

/// Writes a line of results.
pub(crate) fn line(text: impl Display) -> io::Result<()> {
    writeln!(io::stdout().lock(), "{text}")
}

/// Writes a result for programs.
pub(crate) fn json(value: &impl Serialize) -> anyhow::Result<()> {
    Ok(line(serde_json::to_string_pretty(value)?)?)
}

/// Writes a result as it is, without adding a line end.
pub(crate) fn raw(bytes: &[u8]) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(bytes)?;
    stdout.flush()
}

/// A table for people, as wide as the terminal at most. Without a header it is rows only.
pub(crate) fn table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table
        .load_preset(presets::NOTHING)
        .set_content_arrangement(ContentArrangement::Dynamic);
    if !header.is_empty() {
        table.set_header(header);
    }
    table
}

/// The lines of a table, flush with the margin.
pub(crate) fn table_text(table: &Table) -> String {
    let lines = table.lines().map(|line| {
        line.strip_prefix(' ')
            .unwrap_or(&line)
            .trim_end()
            .to_owned()
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// Writes a table, or in place of an empty one the text.
pub(crate) fn table_or(table: &Table, empty: &str) -> io::Result<()> {
    if table.row_count() == 0 {
        line(empty)
    } else {
        line(table_text(table))
    }
}

/// A number of requests per second, or of milliseconds, with as many digits as people read.
pub(crate) fn number(value: f64) -> String {
    if value.fract().abs() < f64::EPSILON || value.abs() >= 1000.0 {
        format!("{value:.0}")
    } else {
        format!("{value:.1}")
    }
}

/// [`number`], or a dash where there is none.
pub(crate) fn number_or_dash(value: Option<f64>) -> String {
    value.map_or_else(|| "-".to_owned(), number)
}

/// The word that the API has for a state.
pub(crate) fn word(state: &impl Serialize) -> String {
    match serde_json::to_value(state) {
        Ok(serde_json::Value::String(word)) => word,
        other => unreachable!("states are words, not {other:?}"),
    }
}

/// A bar that counts bytes, on standard error if that is a terminal.
pub(crate) fn byte_bar(what: &'static str, bytes: u64) -> ProgressBar {
    let template = "{msg} {wide_bar} {binary_bytes}/{binary_total_bytes} {binary_bytes_per_sec}";
    let style = ProgressStyle::with_template(template).expect("a template that is fixed here");
    ProgressBar::new(bytes).with_style(style).with_message(what)
}

/// A line that says what is being waited for, on standard error if that is a terminal.
pub(crate) fn spinner() -> ProgressBar {
    let style = ProgressStyle::with_template("{spinner} {msg} ({elapsed})")
        .expect("a template that is fixed here");
    let spinner = ProgressBar::new_spinner().with_style(style);
    spinner.enable_steady_tick(std::time::Duration::from_millis(100));
    spinner
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_the_digits_people_read() {
        for (value, text) in [
            (50.0, "50"),
            (0.0, "0"),
            (49.96, "50.0"),
            (0.123, "0.1"),
            (1234.5, "1234"),
        ] {
            assert_eq!(number(value), text);
        }
    }
}
