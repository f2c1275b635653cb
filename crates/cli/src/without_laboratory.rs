//! The place of the laboratory in builds without the feature `laboratory`: commands and flags that explain what is missing.

use std::{
    convert::Infallible,
    ffi::OsString,
    future::{Ready, ready},
};

use packhorse_client::AdminClient;
use packhorse_cluster::{Discipline, ModelName};
use packhorse_protocol::{Tensor, TensorMetadata};

use crate::{context::Context, policy_options::PolicyOptionArgs};

/// The error of a command or flag of the laboratory.
#[derive(Debug, thiserror::Error)]
#[error(
    "this packhorse was built without the feature `laboratory`, which {0} needs; use a build with it, such as one from `cargo build \
     -p packhorse-cli`"
)]
struct WithoutLaboratory(&'static str);

fn fail<T>(used: &'static str) -> anyhow::Result<T> {
    Err(WithoutLaboratory(used).into())
}

/// Any arguments of a command that this build lacks.
#[derive(clap::Args)]
#[command(
    disable_help_flag = true,
    after_help = "This packhorse was built without the feature `laboratory`, which the command needs.\n\nExample:\n  cargo build -p packhorse-cli"
)]
pub(crate) struct AnyArgs {
    #[arg(hide = true, trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<OsString>,
}

/// The commands beside those for operators and clients.
#[derive(clap::Subcommand)]
pub(crate) enum LaboratoryCommand {
    /// Predict the latencies of a plan's replicas (not in this build)
    Predict(AnyArgs),
    /// Run plans in a simulated cluster (not in this build)
    Simulate(AnyArgs),
    /// Send requests to a live gateway and measure the answers (not in this build)
    Bench(AnyArgs),
}

impl LaboratoryCommand {
    pub(crate) fn run(self, _context: &Context) -> Ready<anyhow::Result<()>> {
        ready(fail(match self {
            Self::Predict(_) => "packhorse predict",
            Self::Simulate(_) => "packhorse simulate",
            Self::Bench(_) => "packhorse bench",
        }))
    }
}

/// The commands of `packhorse profile` that need no gateway.
#[derive(clap::Subcommand)]
pub(crate) enum ProfileLaboratoryCommand {
    /// Calculate occupancy and SM utilisation of recorded kernels (not in this build)
    Kernels(AnyArgs),
    /// Record the kernels of a batch on this machine (not in this build)
    Record(AnyArgs),
    /// Measure how models slow each other on a shared device (not in this build)
    Pairs(AnyArgs),
    /// Estimate a profile from the operators of a program (not in this build)
    Estimate(AnyArgs),
}

impl ProfileLaboratoryCommand {
    pub(crate) fn run(self, _context: &Context) -> Ready<anyhow::Result<()>> {
        ready(fail(match self {
            Self::Kernels(_) => "packhorse profile kernels",
            Self::Record(_) => "packhorse profile record",
            Self::Pairs(_) => "packhorse profile pairs",
            Self::Estimate(_) => "packhorse profile estimate",
        }))
    }
}

/// The flags of `packhorse plan` for scenarios.
#[derive(clap::Args)]
pub(crate) struct ScenarioPlanArgs {
    #[arg(long, hide = true)]
    scenario: Option<OsString>,
    #[arg(long, hide = true)]
    plot: Option<OsString>,
    #[arg(long, hide = true)]
    min_devices: bool,
    #[arg(long, hide = true)]
    min_cost: bool,
    #[arg(long, hide = true)]
    max_devices: Option<OsString>,
}

impl ScenarioPlanArgs {
    /// Returns true if a flag is given.
    pub(crate) fn is_given(&self) -> bool {
        let values = [&self.scenario, &self.plot, &self.max_devices];
        self.min_devices || self.min_cost || values.into_iter().any(Option::is_some)
    }

    #[expect(
        clippy::unused_self,
        reason = "the laboratory's function reads its flags"
    )]
    pub(crate) fn run(
        &self,
        _context: &Context,
        _policy: Option<&str>,
        _discipline: Option<Discipline>,
        _options: &PolicyOptionArgs,
        _explain: bool,
    ) -> anyhow::Result<()> {
        fail("packhorse plan --scenario")
    }
}

/// Accepts any name: the gateway checks it.
#[expect(clippy::unnecessary_wraps, reason = "clap expects a Result")]
pub(crate) fn parse_policy_name(name: &str) -> Result<String, Infallible> {
    Ok(name.to_owned())
}

/// The flags of `packhorse profile show` for figures.
#[derive(clap::Args)]
pub(crate) struct KernelPlotArgs {
    #[arg(long, hide = true, requires = "model")]
    plot: Option<OsString>,
    #[arg(long, hide = true, requires = "plot")]
    batch_size: Vec<OsString>,
    #[arg(long, hide = true, requires = "plot")]
    device_kind: Option<OsString>,
}

impl KernelPlotArgs {
    pub(crate) fn draw(
        &self,
        _model: &ModelName,
        _admin: &AdminClient,
    ) -> Ready<anyhow::Result<()>> {
        ready(match &self.plot {
            Some(_) => fail("packhorse profile show --plot"),
            None => Ok(()),
        })
    }
}

/// The flags of `packhorse infer` for images.
#[derive(clap::Args)]
pub(crate) struct ImageArgs {
    #[arg(long, hide = true, value_parser = refuse_image)]
    image: Option<OsString>,
    #[arg(long, hide = true, requires = "image")]
    input_name: Option<OsString>,
    #[arg(long, hide = true, requires = "image")]
    preprocess: Option<OsString>,
    #[command(flatten)]
    _preprocessing: Preprocessing,
}

#[derive(clap::Args)]
#[group(id = "preprocessing", multiple = true, requires = "image")]
struct Preprocessing {
    #[arg(long, hide = true)]
    resize: Option<OsString>,
    #[arg(long, hide = true)]
    filter: Option<OsString>,
    #[arg(long, hide = true)]
    crop: Option<OsString>,
    #[arg(long, hide = true, allow_hyphen_values = true)]
    mean: Option<OsString>,
    #[arg(long, hide = true)]
    std: Option<OsString>,
    #[arg(long, hide = true)]
    layout: Option<OsString>,
    #[arg(long, hide = true)]
    datatype: Option<OsString>,
}

/// Refuses an image while the arguments are parsed, before any request to the gateway.
fn refuse_image(_path: &str) -> Result<OsString, WithoutLaboratory> {
    Err(WithoutLaboratory("packhorse infer --image"))
}

impl ImageArgs {
    #[expect(
        clippy::unnecessary_wraps,
        reason = "the laboratory's function can fail"
    )]
    pub(crate) fn tensor(&self, _inputs: &[TensorMetadata]) -> anyhow::Result<Option<Tensor>> {
        assert!(self.image.is_none(), "images are refused");
        Ok(None)
    }
}
