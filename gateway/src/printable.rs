//! Texts of models, workers and agents, which reach logs, terminals and clients.
//!
//! The message of an exception is whatever a program says. Control characters in it could forge a line of a log, or command a terminal.

/// The largest number of characters that are kept of a text.
const MAX_TEXT: usize = 2000;

/// Returns the first [`MAX_TEXT`] characters of a text in one line: white space is a space, and another control character a mark.
pub(crate) fn printable(text: &str) -> String {
    let character = |character: char| match character {
        '\n' | '\r' | '\t' | '\u{2028}' | '\u{2029}' => ' ',
        // Those that change the direction of a text hide what it says.
        '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => char::REPLACEMENT_CHARACTER,
        other if other.is_control() => char::REPLACEMENT_CHARACTER,
        other => other,
    };
    text.chars().take(MAX_TEXT).map(character).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_one_line_and_commands_no_terminal() {
        assert_eq!(
            printable("shape [1, 2]: größer \u{1f634}"),
            "shape [1, 2]: größer \u{1f634}"
        );
        let forged = "no\r\n2027-01-01 INFO all is well\t\u{1b}[2J\u{9b}31m\0\u{202e}";
        let shown = "no  2027-01-01 INFO all is well \u{fffd}[2J\u{fffd}31m\u{fffd}\u{fffd}";
        assert_eq!(printable(forged), shown);
        assert_eq!(printable(&"x".repeat(MAX_TEXT + 1)).len(), MAX_TEXT);
    }
}
