//! The time for which a thread was ready to run and no processor ran it. A measurement beside the requests of a busy device takes it off: the program did
//! not need it.

use std::{fs, time::Duration};

/// The kernel's statistics of the calling thread: nanoseconds on a processor, nanoseconds ready and not on one, and turns.
const STATISTICS: &str = "/proc/thread-self/schedstat";

/// Returns the time for which the calling thread has waited for a processor since its start; zero where the kernel does not tell.
pub(crate) fn run_delay() -> Duration {
    let text = fs::read_to_string(STATISTICS).unwrap_or_default();
    parse(&text).unwrap_or_default()
}

fn parse(text: &str) -> Option<Duration> {
    let delay = text.split_ascii_whitespace().nth(1)?;
    delay.parse().ok().map(Duration::from_nanos)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_number_is_the_delay() {
        assert_eq!(parse("5 1500 3\n"), Some(Duration::from_nanos(1500)));
        assert_eq!(parse(""), None);
        assert_eq!(parse("5 x 3"), None);
    }

    #[test]
    fn this_kernel_tells_it_and_it_never_falls() {
        let before = run_delay();
        assert!(fs::read_to_string(STATISTICS).is_ok_and(|text| parse(&text).is_some()));
        assert!(run_delay() >= before);
    }
}
