//! `packhorse completions`, and the manual pages of a release archive.

use std::{fs, io, path::PathBuf};

use anyhow::Context as _;
use clap::Command;
use clap_complete::Shell;

#[derive(clap::Args)]
#[command(
    after_help = "Example:\n  packhorse completions bash > ~/.local/share/bash-completion/completions/packhorse"
)]
pub(crate) struct CompletionsArgs {
    /// The shell
    shell: Shell,
}

#[derive(clap::Args)]
#[command(after_help = "Example:\n  packhorse manual-pages share/man/man1")]
pub(crate) struct ManualPagesArgs {
    /// Folder to write the pages into, one per command
    folder: PathBuf,
}

impl CompletionsArgs {
    pub(crate) fn run(&self, mut command: Command) {
        clap_complete::generate(self.shell, &mut command, "packhorse", &mut io::stdout());
    }
}

impl ManualPagesArgs {
    pub(crate) fn run(&self, command: Command) -> anyhow::Result<()> {
        let shown = self.folder.display();
        fs::create_dir_all(&self.folder)
            .and_then(|()| clap_mangen::generate_to(command, &self.folder))
            .with_context(|| format!("cannot write into {shown}"))
    }
}
