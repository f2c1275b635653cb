//! `packhorse-gateway store`: what is done with databases while no gateway runs.

use std::io::{self, Write as _};

use crate::store::{StoreUrl, TransferError, transfer};

/// The commands on databases.
#[derive(Clone, Debug, clap::Subcommand)]
pub enum StoreCommand {
    /// Copy a cluster from one database into another one, which is empty, while no gateway runs
    #[command(
        after_help = "Example:\n  packhorse store migrate --from sqlite:/var/lib/packhorse/packhorse.db --to postgres://packhorse@db/packhorse"
    )]
    Migrate {
        /// Database of the cluster, as in --store of the gateway; it stays as it is
        #[arg(
            long,
            value_name = "URL",
            env = "PACKHORSE_STORE_FROM",
            hide_env_values = true
        )]
        from: StoreUrl,
        /// Database without rows, or a file of SQLite that does not exist
        #[arg(
            long,
            value_name = "URL",
            env = "PACKHORSE_STORE_TO",
            hide_env_values = true
        )]
        to: StoreUrl,
    },
}

/// The reason why it is not done.
#[derive(Debug, thiserror::Error)]
pub enum StoreCommandError {
    /// The cluster is not moved.
    #[error("the cluster is not moved")]
    Transfer(#[from] TransferError),
    /// The result cannot be printed.
    #[error("cannot write to standard output")]
    Print(#[from] io::Error),
}

impl StoreCommand {
    /// Carries it out, and prints what was done.
    ///
    /// # Errors
    /// If it cannot be done.
    pub async fn run(self) -> Result<(), StoreCommandError> {
        let Self::Migrate { from, to } = self;
        let counts = transfer(&from, &to).await?;
        let mut out = io::stdout().lock();
        for (table, rows) in &counts {
            writeln!(out, "{table:<14}{rows:>8} rows")?;
        }
        writeln!(
            out,
            "{from} is copied to {to}; start the gateway with --store {to}"
        )?;
        Ok(())
    }
}
