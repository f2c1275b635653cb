//! `packhorse store`: the gateway's program works on its databases.

use std::ffi::OsString;

use crate::pass_on::pass_on_to;

/// The arguments that `packhorse-gateway store` reads.
#[derive(clap::Args)]
#[command(
    disable_help_flag = true,
    after_help = "`packhorse-gateway` does it, with the same arguments.\n\nExample:\n  packhorse store migrate --from sqlite:/var/lib/packhorse/packhorse.db --to postgres://packhorse@db/packhorse"
)]
pub(crate) struct StoreArgs {
    #[arg(hide = true, trailing_var_arg = true, allow_hyphen_values = true)]
    _arguments: Vec<OsString>,
}

/// Becomes `packhorse-gateway` with the arguments of this process. Returns only if it cannot.
pub(crate) fn pass_on() -> anyhow::Result<()> {
    pass_on_to("packhorse-gateway")
}
