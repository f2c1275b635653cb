//! `packhorse profile show --plot`: draws the kernels that were recorded when a model was measured.

use anyhow::{Context as _, ensure};
use packhorse_client::AdminClient;
use packhorse_cluster::{DeviceKind, ModelName};
use packhorse_kernels::{KernelProfile, KernelTable};

use super::figure;
use crate::{laboratory::plot::PlotFile, view::versioned_name};

/// The flags of `packhorse profile show` for figures.
#[derive(clap::Args)]
pub(crate) struct KernelPlotArgs {
    /// Draw occupancy and SM utilisation of the model's kernels over time into this file
    #[arg(long, value_name = "F.svg", requires = "model")]
    plot: Option<PlotFile>,
    /// Draw this batch size only; may be repeated
    #[arg(long, value_name = "N", requires = "plot")]
    batch_size: Vec<u32>,
    /// Draw this kind of device only
    #[arg(long, value_name = "KIND", requires = "plot")]
    device_kind: Option<DeviceKind>,
}

impl KernelPlotArgs {
    /// Draws the kernels that the gateway has of a model, if a file is given.
    pub(crate) async fn draw(&self, model: &ModelName, admin: &AdminClient) -> anyhow::Result<()> {
        let Some(plot) = &self.plot else {
            return Ok(());
        };
        let batches = self.batches(&admin.kernels(model).await?)?;
        let is_filtered = !self.batch_size.is_empty() || self.device_kind.is_some();
        ensure!(
            !batches.is_empty(),
            "--plot: there are no recorded kernels of {model}{}; kernels are recorded when a model is measured on a GPU",
            if is_filtered {
                " for this batch size or kind of device"
            } else {
                ""
            }
        );
        let title = format!("Kernels of {model}");
        plot.write(&figure::kernel_figure(title, &batches))
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
