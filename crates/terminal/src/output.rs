//! Writes results to standard output and progress to standard error.
//!
//! The functions that write results report a closed pipe as an error, where `println!` would panic.

use std::{
    env,
    fmt::Display,
    io::{self, IsTerminal as _, Write},
    time::{SystemTime, UNIX_EPOCH},
};

use comfy_table::{ContentArrangement, Table, presets};
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;

/// Writes a line of results.
pub fn print_line(text: impl Display) -> io::Result<()> {
    writeln!(io::stdout().lock(), "{text}")
}

/// Writes a line for people to standard error. Nobody is told if that cannot be written, for instance because it is a file on a full disk: it is
/// no reason to end.
pub fn note(text: impl Display) {
    let _ = writeln!(io::stderr().lock(), "{text}");
}

/// Writes a result as JSON.
pub fn print_json(value: &impl Serialize) -> anyhow::Result<()> {
    Ok(print_line(serde_json::to_string_pretty(value)?)?)
}

/// Writes bytes unchanged, without adding a line end.
pub fn print_bytes(bytes: &[u8]) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(bytes)?;
    stdout.flush()
}

/// Returns a table that is at most as wide as the terminal. An empty `header` makes a table without one.
pub fn new_table(header: &[&str]) -> Table {
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
pub fn table_text(table: &Table) -> String {
    let lines = table.lines().map(|line| {
        line.strip_prefix(' ')
            .unwrap_or(&line)
            .trim_end()
            .to_owned()
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// Writes a table, or `empty` if the table has no rows.
pub fn print_table(table: &Table, empty: &str) -> io::Result<()> {
    if table.row_count() == 0 {
        print_line(empty)
    } else {
        print_line(table_text(table))
    }
}

/// Formats a number with one digit after the point, or with none if it is whole or at least 1000.
pub fn format_number(value: f64) -> String {
    if value.fract().abs() < f64::EPSILON || value.abs() >= 1000.0 {
        format!("{value:.0}")
    } else {
        format!("{value:.1}")
    }
}

/// Formats a number like [`format_number`], and `None` as a dash.
pub fn format_number_or_dash(value: Option<f64>) -> String {
    value.map_or_else(|| "-".to_owned(), format_number)
}

/// Returns the time of this machine, in milliseconds since 1970.
#[expect(
    clippy::disallowed_methods,
    reason = "the time of a look is shown, and doctor examines the clock"
)]
pub fn now_ms() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(0, |now| u64::try_from(now.as_millis()).unwrap_or(u64::MAX))
}

/// Formats a time in milliseconds since 1970 as UTC.
///
/// Source: H. Hinnant, "chrono-Compatible Low-Level Date Algorithms", `civil_from_days`.
pub fn format_time(unix_ms: u64) -> String {
    let (seconds, millis) = (unix_ms / 1000, unix_ms % 1000);
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    // Days since 0000-03-01, so that a leap day is the last of its year; an era has 400 years.
    let days = days + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let march_month = (5 * day + 2) / 153;
    let day = day - (153 * march_month + 2) / 5 + 1;
    let month = (march_month + 2) % 12 + 1;
    let year = year + era * 400 + u64::from(month <= 2);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}.{millis:03}Z")
}

/// A colour of text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Colour {
    /// What fails.
    Red,
    /// What is well.
    Green,
    /// What needs a look.
    Yellow,
}

/// Returns the text in a colour if standard output is a terminal, and the environment variable `NO_COLOR` is not set.
pub fn paint(text: &str, colour: Colour) -> String {
    let wanted = env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    if !wanted || !io::stdout().is_terminal() {
        return text.to_owned();
    }
    let code = match colour {
        Colour::Red => 31,
        Colour::Green => 32,
        Colour::Yellow => 33,
    };
    format!("\u{1b}[{code}m{text}\u{1b}[0m")
}

/// Returns the API's name of a state.
pub fn state_name(state: &impl Serialize) -> String {
    match serde_json::to_value(state) {
        Ok(serde_json::Value::String(name)) => name,
        other => unreachable!("a state is serialized as a string, not as {other:?}"),
    }
}

/// Returns a progress bar that counts bytes, shown if standard error is a terminal.
pub fn byte_bar(label: &'static str, bytes: u64) -> ProgressBar {
    let template = "{msg} {wide_bar} {binary_bytes}/{binary_total_bytes} {binary_bytes_per_sec}";
    let style = ProgressStyle::with_template(template).expect("the template is valid");
    ProgressBar::new(bytes)
        .with_style(style)
        .with_message(label)
}

/// Returns a progress bar that counts things, shown if standard error is a terminal.
pub fn count_bar(label: &'static str, count: u64) -> ProgressBar {
    let template = "{msg} {wide_bar} {pos}/{len}";
    let style = ProgressStyle::with_template(template).expect("the template is valid");
    ProgressBar::new(count)
        .with_style(style)
        .with_message(label)
}

/// Returns a spinner with a message, shown if standard error is a terminal.
pub fn spinner() -> ProgressBar {
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
    fn times_are_dates_in_utc() {
        for (unix_ms, text) in [
            (0, "1970-01-01 00:00:00.000Z"),
            (951_782_399_999, "2000-02-28 23:59:59.999Z"),
            (951_782_400_000, "2000-02-29 00:00:00.000Z"),
            (951_868_800_000, "2000-03-01 00:00:00.000Z"),
            (1_795_388_003_313, "2026-11-22 22:53:23.313Z"),
            (4_107_542_399_000, "2100-02-28 23:59:59.000Z"),
            (4_107_542_400_000, "2100-03-01 00:00:00.000Z"),
        ] {
            assert_eq!(format_time(unix_ms), text);
        }
    }

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
