//! The manual page of a program, made of its flags: release archives contain it.

use std::{env, io};

use clap::CommandFactory;
use clap_mangen::Man;

/// The only argument of a program that shall print its manual page.
const FLAG: &str = "--manual-page";

/// Prints the manual page of a program if that is what it was started for. Returns true if so.
///
/// # Errors
/// If standard output cannot be written.
pub fn print_manual_page<Options: CommandFactory>() -> io::Result<bool> {
    let mut arguments = env::args_os().skip(1);
    if arguments.next().is_none_or(|argument| argument != FLAG) || arguments.next().is_some() {
        return Ok(false);
    }
    Man::new(Options::command()).render(&mut io::stdout().lock())?;
    Ok(true)
}
