//! `packhorse-lab profile plot`: draws the kernels that were recorded when a model was measured.

use anyhow::{Context as _, ensure};
use packhorse_cluster::{DeviceKind, ModelName};
use packhorse_kernels::{KernelProfile, KernelTable};
use packhorse_terminal::{context::Context, versioned_name};

use super::figure;
use crate::plot::PlotFile;

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  packhorse-lab profile plot resnet50 kernels.svg
  packhorse-lab profile plot resnet50 kernels.svg --batch-size 4")]
pub(crate) struct PlotArgs {
    /// The model
    model: ModelName,
    /// Draw occupancy and SM utilisation of the model's kernels over time into this file
    #[arg(value_name = "F.svg")]
    plot: PlotFile,
    /// Draw this batch size only; may be repeated
    #[arg(long, value_name = "N")]
    batch_size: Vec<u32>,
    /// Draw this kind of device only
    #[arg(long, value_name = "KIND")]
    device_kind: Option<DeviceKind>,
}

impl PlotArgs {
    /// Draws the kernels that the gateway has of a model.
    pub(crate) async fn run(&self, context: &Context) -> anyhow::Result<()> {
        let (model, admin) = (&self.model, context.admin()?);
        let batches = self.batches(&admin.kernels(model).await?)?;
        let is_filtered = !self.batch_size.is_empty() || self.device_kind.is_some();
        ensure!(
            !batches.is_empty(),
            "there are no recorded kernels of {model}{}; kernels are recorded when a model is measured on a GPU",
            if is_filtered {
                " for this batch size or kind of device"
            } else {
                ""
            }
        );
        let title = format!("Kernels of {model}");
        self.plot.write(&figure::kernel_figure(title, &batches))
    }

    /// Returns the batches to draw, each with its title.
    fn batches(&self, kernels: &KernelTable) -> anyhow::Result<Vec<(String, KernelProfile)>> {
        let mut batches = Vec::new();
        for (model, kind, recording) in kernels.iter() {
            if self.device_kind.as_ref().is_some_and(|only| only != kind) {
                continue;
            }
            for (size, _) in recording.batches() {
                if !self.batch_size.is_empty() && !self.batch_size.contains(&size) {
                    continue;
                }
                let name = versioned_name(&model.name, model.version);
                let title = format!("{name} at batch size {size} on {kind}");
                let profile = recording
                    .profile(size)
                    .expect("the recording has this size");
                batches.push((title.clone(), profile.context(title)?));
            }
        }
        Ok(batches)
    }
}
