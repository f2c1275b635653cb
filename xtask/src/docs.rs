//! The book: `docs`, built by mdBook. What it says is tested by `tests/test_book.py`, which CI runs with the other system tests.

use std::process::Command;

use crate::{
    setup,
    workspace::{python, root, succeed},
};

/// The flags of the book.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  cargo xtask docs            Builds target/book, runs its commands, and checks its links, its JSON and its reference
  cargo xtask docs --bless    Writes docs/reference anew first
  cargo xtask docs --open     Builds it and opens it in the browser, without checks")]
pub(crate) struct Options {
    /// Write the generated pages, of the command line and the HTTP API, anew
    #[arg(long)]
    bless: bool,
    /// Open the book in the browser, and check nothing
    #[arg(long, conflicts_with = "bless")]
    open: bool,
}

/// Builds the book and checks it, or opens it.
pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    if options.open {
        setup::run()?;
        return succeed(
            Command::new(root().join(".venv/bin/mdbook"))
                .args(["build", "--open"])
                .arg(root().join("docs")),
        );
    }
    setup::run_and_build()?;
    let mut pytest = Command::new(python());
    pytest
        .current_dir(root())
        .args(["-m", "pytest", "tests/test_book.py"]);
    if options.bless {
        pytest.env("PACKHORSE_BLESS", "1");
    }
    succeed(&mut pytest)?;
    println!("{}", root().join("target/book/index.html").display());
    Ok(())
}
