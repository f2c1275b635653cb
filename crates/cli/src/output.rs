//! Writes results to standard output and progress to standard error.
//!
//! The functions that write results report a closed pipe as an error, where `println!` would panic.

use std::{
    fmt::Display,
    io::{self, Write},
};

use comfy_table::{ContentArrangement, Table, presets};
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;

/// Writes a line of results.
pub(crate) fn print_line(text: impl Display) -> io::Result<()> {
    writeln!(io::stdout().lock(), "{text}")
}

/// Writes a result as JSON.
pub(crate) fn print_json(value: &impl Serialize) -> anyhow::Result<()> {
    Ok(print_line(serde_json::to_string_pretty(value)?)?)
}

/// Writes bytes unchanged, without adding a line end.
pub(crate) fn print_bytes(bytes: &[u8]) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(bytes)?;
    stdout.flush()
}

/// Returns a table that is at most as wide as the terminal. An empty `header` makes a table without one.
pub(crate) fn new_table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table
        .load_preset(presets::NOTHING)
        .set_content_arrangement(ContentArrangement::Dynamic);
    if !header.is_empty() {
        table.set_header(header);
    }
    table
}

/// Returns the lines of a table, aligned with the left margin.
pub(crate) fn table_text(table: &Table) -> String {
    let lines = table.lines().map(|line| {
        line.strip_prefix(' ')
            .unwrap_or(&line)
            .trim_end()
            .to_owned()
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// Writes a table, or `empty` if the table has no rows.
pub(crate) fn print_table(table: &Table, empty: &str) -> io::Result<()> {
    if table.row_count() == 0 {
        print_line(empty)
    } else {
        print_line(table_text(table))
    }
}

/// Formats a number with one digit after the point, or with none if it is whole or at least 1000.
pub(crate) fn format_number(value: f64) -> String {
    if value.fract().abs() < f64::EPSILON || value.abs() >= 1000.0 {
        format!("{value:.0}")
    } else {
        format!("{value:.1}")
    }
}

/// Formats a number like [`format_number`], and `None` as a dash.
pub(crate) fn format_number_or_dash(value: Option<f64>) -> String {
    value.map_or_else(|| "-".to_owned(), format_number)
}

/// Returns the API's name of a state.
pub(crate) fn state_name(state: &impl Serialize) -> String {
    match serde_json::to_value(state) {
        Ok(serde_json::Value::String(name)) => name,
        other => unreachable!("a state is serialized as a string, not as {other:?}"),
    }
}

/// Returns a progress bar that counts bytes, shown if standard error is a terminal.
pub(crate) fn byte_bar(label: &'static str, bytes: u64) -> ProgressBar {
    let template = "{msg} {wide_bar} {binary_bytes}/{binary_total_bytes} {binary_bytes_per_sec}";
    let style = ProgressStyle::with_template(template).expect("the template is valid");
    ProgressBar::new(bytes)
        .with_style(style)
        .with_message(label)
}

/// Returns a spinner with a message, shown if standard error is a terminal.
pub(crate) fn spinner() -> ProgressBar {
    let style =
        ProgressStyle::with_template("{spinner} {msg} ({elapsed})").expect("the template is valid");
    let spinner = ProgressBar::new_spinner().with_style(style);
    spinner.enable_steady_tick(std::time::Duration::from_millis(100));
    spinner
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_at_most_one_digit_after_the_point() {
        for (value, text) in [
            (50.0, "50"),
            (0.0, "0"),
            (49.96, "50.0"),
            (0.123, "0.1"),
            (1234.5, "1234"),
        ] {
            assert_eq!(format_number(value), text);
        }
    }
}
