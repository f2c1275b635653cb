//! The completions of a command, and its manual pages for a release archive.

use std::{fs, io, path::PathBuf};

use anyhow::Context as _;
use clap::Command;
use clap_complete::Shell;

/// The options of `completions`.
#[derive(clap::Args)]
#[command(
    after_help = "Example:\n  packhorse completions bash > ~/.local/share/bash-completion/completions/packhorse"
)]
pub struct CompletionsArgs {
    /// The shell
    shell: Shell,
}

/// The options of `manual-pages`.
#[derive(clap::Args)]
#[command(after_help = "Example:\n  packhorse manual-pages share/man/man1")]
pub struct ManualPagesArgs {
    /// Folder to write the pages into, one per command
    folder: PathBuf,
}

impl CompletionsArgs {
    /// Prints the completions of a command.
    pub fn run(&self, mut command: Command) {
        let name = command.get_name().to_owned();
        clap_complete::generate(self.shell, &mut command, name, &mut io::stdout());
    }
}

impl ManualPagesArgs {
    /// Writes the pages of a command and of those below it.
    pub fn run(&self, command: Command) -> anyhow::Result<()> {
        let shown = self.folder.display();
        fs::create_dir_all(&self.folder)
            .and_then(|()| clap_mangen::generate_to(command, &self.folder))
            .with_context(|| format!("cannot write into {shown}"))
    }
}

/// Checks for a test that a command line is consistent, and that every command has an example.
///
/// # Panics
/// It names the command that is not so.
pub fn check(command: &Command) {
    fn check_below(command: &Command, path: &str) {
        let path = format!("{path} {}", command.get_name());
        let help = command.get_after_help().map(ToString::to_string);
        let has_example = help.is_some_and(|help| help.contains("Example"));
        assert!(has_example, "{path} has no example");
        let below = command.get_subcommands();
        below.for_each(|command| check_below(command, &path));
    }
    command.clone().debug_assert();
    check_below(command, "");
}
