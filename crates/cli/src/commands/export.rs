//! `packhorse export`, which calls PyTorch and so is written in Python: the Python package runs it in place of this program.

use std::ffi::OsString;

use anyhow::bail;

/// Arguments of `packhorse export`.
#[derive(clap::Args)]
#[command(after_help = "\
It runs in Python, because it calls PyTorch: in an environment in which the Python package of Packhorse is installed
`packhorse export --help` says its options. In a checkout it is `PYTHONPATH=python python -m packhorse.export_command`.

Examples:
  packhorse export torchvision:resnet50 models/resnet50 --slo-ms 500
  packhorse export scorer.py:scorer models/scorer")]
pub(crate) struct ExportArgs {
    /// The source and the folder to write, and options
    #[arg(
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "SOURCE DIR"
    )]
    arguments: Vec<OsString>,
}

pub(crate) fn say_where_it_is() -> anyhow::Result<()> {
    bail!(
        "export calls PyTorch and runs in Python: install the Python package of Packhorse, whose command packhorse has it, or in a checkout run \
         PYTHONPATH=python python -m packhorse.export_command"
    )
}
