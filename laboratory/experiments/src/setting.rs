//! Scenario files, and the worlds in which they are tried.

use std::{
    fmt, fs,
    path::{Path, PathBuf},
};

use anyhow::Context as _;
use packhorse_simulator::Scenario;

/// The repository's root.
pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .ancestors()
        .nth(2)
        .expect("this crate is two folders below the root")
}

/// What is not in the thesis' profiles, and which of it counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum World {
    /// Inference takes longer than the profiles say, and clients have work of their own per request, both fitted to what the thesis
    /// measured: vision models 1.22 times as long, language models 1.05 times, 0.308 ms per request, with which a client
    /// reaches 433 of 500 requests/s.
    Calibrated,
    /// The profiles are right and clients cost nothing.
    Nominal,
}

impl World {
    pub(crate) const ALL: [Self; 2] = [Self::Calibrated, Self::Nominal];
}

impl fmt::Display for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Calibrated => "calibrated",
            Self::Nominal => "nominal",
        })
    }
}

/// How much longer inference of vision models takes in the calibrated world than the profiles say.
pub(crate) const VISION_SCALE: f64 = 1.22;

const LANGUAGE_MODELS: [&str; 3] = ["bert", "gpt2", "t5"];

/// A scenario file, under a short name, perhaps with changes.
#[derive(Clone, Debug)]
pub(crate) struct Setting {
    /// Stands at the head of a column, and below a group of bars.
    pub(crate) label: String,
    /// Settings of the same part stand beside each other; tables and charts have one part each.
    pub(crate) part: String,
    file: PathBuf,
    /// In the calibrated world.
    vision_scale: f64,
    simulation: Vec<(&'static str, toml::Value)>,
}

impl Setting {
    /// `file` in `scenarios/thesis`, without its `.toml`.
    pub(crate) fn thesis(label: impl Into<String>, file: &str) -> Self {
        Self {
            label: label.into(),
            part: String::new(),
            file: root().join(format!("scenarios/thesis/{file}.toml")),
            vision_scale: VISION_SCALE,
            simulation: Vec::new(),
        }
    }

    /// So many GPUs of a figure whose files count them.
    pub(crate) fn gpus(figure: &str, gpus: usize) -> Self {
        let label = if gpus == 1 {
            "1 GPU".to_owned()
        } else {
            format!("{gpus} GPUs")
        };
        Self::thesis(label, &format!("{figure}-gpus-{gpus}"))
    }

    /// Part and label.
    pub(crate) fn name(&self) -> String {
        format!("{} {}", self.part, self.label)
            .trim_start()
            .to_owned()
    }

    pub(crate) fn in_part(self, part: impl Into<String>) -> Self {
        Self {
            part: part.into(),
            ..self
        }
    }

    /// With another scale of vision models in the calibrated world.
    pub(crate) fn vision_scaled(self, vision_scale: f64) -> Self {
        Self {
            vision_scale,
            ..self
        }
    }

    /// With another value of the scenario's `[simulation]`.
    pub(crate) fn with(mut self, key: &'static str, value: impl Into<toml::Value>) -> Self {
        self.simulation.push((key, value.into()));
        self
    }

    /// The scenario in one of the worlds.
    pub(crate) fn scenario(&self, world: World) -> anyhow::Result<Scenario> {
        let shown = || self.file.display().to_string();
        let text = fs::read_to_string(&self.file).with_context(shown)?;
        let mut table: toml::Table = text.parse().with_context(shown)?;
        if world == World::Calibrated {
            calibrate(&mut table, self.vision_scale);
        }
        for (key, value) in &self.simulation {
            set(&mut table, key, value.clone());
        }
        let folder = self.file.parent().unwrap_or(Path::new(""));
        let mut load =
            |name: &str| fs::read_to_string(folder.join(name)).map_err(|e| e.to_string());
        Scenario::parse(&table.to_string(), &mut load).with_context(shown)
    }
}

fn set(table: &mut toml::Table, key: &str, value: toml::Value) {
    let simulation = table
        .entry("simulation")
        .or_insert_with(|| toml::Table::new().into());
    if let toml::Value::Table(simulation) = simulation {
        simulation.insert(key.to_owned(), value);
    }
}

fn calibrate(table: &mut toml::Table, vision_scale: f64) {
    set(table, "client_overhead_ms", 0.308.into());
    let models = table.get_mut("models").and_then(toml::Value::as_array_mut);
    for model in models
        .into_iter()
        .flatten()
        .filter_map(toml::Value::as_table_mut)
    {
        let name = model.get("name").and_then(toml::Value::as_str);
        let is_language = name.is_some_and(|name| LANGUAGE_MODELS.contains(&name));
        let scale = if is_language { 1.05 } else { vision_scale };
        model.insert("latency_scale".to_owned(), scale.into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_calibrated_world_slows_vision_more_than_language() {
        let setting = Setting::thesis("six", "6.10-gpus-6");
        let scales = |world| {
            let scenario = setting
                .scenario(world)
                .expect("a scenario of the repository");
            let scales = scenario.workloads.iter().map(|load| load.latency_scale);
            (
                scales.collect::<Vec<f64>>(),
                scenario.simulation.client_overhead.as_nanos(),
            )
        };
        assert_eq!(scales(World::Nominal), (vec![1.0; 4], 0));
        // resnet50 and mobilenet_v2 look, bert and gpt2 read.
        assert_eq!(
            scales(World::Calibrated),
            (vec![1.22, 1.22, 1.05, 1.05], 308_000)
        );
    }
}
