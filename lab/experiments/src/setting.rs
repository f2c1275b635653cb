//! Settings, which are variants of scenario files, and their calibration.

use std::{
    fmt, fs,
    path::{Path, PathBuf},
};

use anyhow::Context as _;
use packhorse_simulator::Scenario;

/// Returns the root of the repository.
pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .ancestors()
        .nth(2)
        .expect("this crate is two folders below the root")
}

/// The assumption about real times that are not in the thesis' profiles. Pages call it a world.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Calibration {
    /// Inference takes longer than in the profiles, and clients have work of their own per request. Both are fitted to the thesis'
    /// measurements: vision models take 1.22 times as long, language models 1.05 times, and a client works 0.308 ms per request, with
    /// which it reaches 433 of 500 requests/s.
    Calibrated,
    /// The times of the profiles hold, and clients have no work of their own.
    Nominal,
}

impl Calibration {
    pub(crate) const ALL: [Self; 2] = [Self::Calibrated, Self::Nominal];
}

impl fmt::Display for Calibration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Calibrated => "calibrated",
            Self::Nominal => "nominal",
        })
    }
}

/// The real time of vision models over the profile's, in the calibrated world.
pub(crate) const VISION_SCALE: f64 = 1.22;

/// The real time of language models over the profile's, in the calibrated world.
const LANGUAGE_SCALE: f64 = 1.05;

/// The work of a client per request in the calibrated world, in milliseconds.
const CLIENT_OVERHEAD_MS: f64 = 0.308;

/// The language models; all other models are vision models.
const LANGUAGE_MODELS: [&str; 3] = ["bert", "gpt2", "t5"];

/// A scenario file with a label, and possibly with changes.
#[derive(Clone, Debug)]
pub(crate) struct Setting {
    /// The label of the setting's column in tables and of its bars in figures.
    pub(crate) label: String,
    /// The part of the setting. Each part has its own table and chart.
    pub(crate) part: String,
    /// The scenario file.
    file: PathBuf,
    /// The real time of vision models over the profile's, in the calibrated world.
    vision_scale: f64,
    /// The changed values of the scenario's `[simulation]`.
    simulation: Vec<(&'static str, toml::Value)>,
    /// The number of devices of the first group; `None` for the file's.
    devices: Option<u32>,
    /// True if the devices have pools; `None` for what the file says.
    pools: Option<bool>,
    /// The changed values of every model.
    models: Vec<(&'static str, toml::Value)>,
    /// The bytes per second from the host's memory to the devices of the first group; `None` for the file's.
    host_link: Option<f64>,
}

impl Setting {
    /// Creates a setting from a file in `scenarios/thesis`, given without `.toml`.
    pub(crate) fn new(label: impl Into<String>, file: &str) -> Self {
        Self {
            label: label.into(),
            ..Self::file(root().join(format!("scenarios/thesis/{file}.toml")))
        }
    }

    /// Creates a setting without a label from a scenario file.
    pub(crate) fn file(file: PathBuf) -> Self {
        Self {
            label: String::new(),
            part: String::new(),
            file,
            vision_scale: VISION_SCALE,
            simulation: Vec::new(),
            devices: None,
            pools: None,
            models: Vec::new(),
            host_link: None,
        }
    }

    /// Creates the setting of a figure with a number of GPUs.
    pub(crate) fn with_gpus(figure: &str, gpus: usize) -> Self {
        let label = if gpus == 1 {
            "1 GPU".to_owned()
        } else {
            format!("{gpus} GPUs")
        };
        Self::new(label, &format!("{figure}-gpus-{gpus}"))
    }

    /// Returns part and label.
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

    /// Changes the scale of vision models in the calibrated world.
    pub(crate) fn with_vision_scale(self, vision_scale: f64) -> Self {
        Self {
            vision_scale,
            ..self
        }
    }

    /// Changes a value of the scenario's `[simulation]`.
    pub(crate) fn with_simulation(
        mut self,
        key: &'static str,
        value: impl Into<toml::Value>,
    ) -> Self {
        self.simulation.push((key, value.into()));
        self
    }

    /// Changes the number of devices of the scenario's first group.
    pub(crate) fn with_devices(self, devices: u32) -> Self {
        Self {
            devices: Some(devices),
            ..self
        }
    }

    /// Has devices have pools, or not.
    pub(crate) fn with_pools(self, pools: bool) -> Self {
        Self {
            pools: Some(pools),
            ..self
        }
    }

    /// Changes a value of every model.
    pub(crate) fn with_models(mut self, key: &'static str, value: impl Into<toml::Value>) -> Self {
        self.models.push((key, value.into()));
        self
    }

    /// Changes the bytes per second from the host's memory to the devices of the scenario's first group.
    pub(crate) fn with_host_link(self, bytes_per_second: f64) -> Self {
        Self {
            host_link: Some(bytes_per_second),
            ..self
        }
    }

    pub(crate) fn labelled(self, label: impl Into<String>) -> Self {
        Self {
            label: label.into(),
            ..self
        }
    }

    /// Reads the scenario and applies the changes and the calibration.
    pub(crate) fn scenario(&self, calibration: Calibration) -> anyhow::Result<Scenario> {
        let path = || self.file.display().to_string();
        let text = fs::read_to_string(&self.file).with_context(path)?;
        let mut table: toml::Table = text.parse().with_context(path)?;
        if calibration == Calibration::Calibrated {
            calibrate(&mut table, self.vision_scale);
        }
        for (key, value) in &self.simulation {
            set_simulation(&mut table, key, value.clone());
        }
        if let Some(pools) = self.pools {
            let pool = if pools { "auto" } else { "off" };
            table.insert("pool".to_owned(), pool.into());
        }
        for model in tables(&mut table, "models") {
            let changes = self.models.iter();
            model.extend(changes.map(|(key, value)| ((*key).to_owned(), value.clone())));
        }
        if let Some(first) = tables(&mut table, "devices").next() {
            let count = self.devices.map(|devices| i64::from(devices).into());
            let changes = [
                ("count", count),
                ("host_link_bytes_per_s", self.host_link.map(Into::into)),
            ];
            let changes = changes.into_iter();
            first.extend(changes.filter_map(|(key, value)| Some((key.to_owned(), value?))));
        }
        let folder = self.file.parent().unwrap_or(Path::new(""));
        let mut load =
            |name: &str| fs::read_to_string(folder.join(name)).map_err(|e| e.to_string());
        Scenario::parse(&table.to_string(), &mut load).with_context(path)
    }
}

/// Returns the tables of an array.
fn tables<'a>(table: &'a mut toml::Table, key: &str) -> impl Iterator<Item = &'a mut toml::Table> {
    let array = table.get_mut(key).and_then(toml::Value::as_array_mut);
    let values = array.into_iter().flatten();
    values.filter_map(toml::Value::as_table_mut)
}

fn set_simulation(table: &mut toml::Table, key: &str, value: toml::Value) {
    let simulation = table
        .entry("simulation")
        .or_insert_with(|| toml::Table::new().into());
    if let toml::Value::Table(simulation) = simulation {
        simulation.insert(key.to_owned(), value);
    }
}

fn calibrate(table: &mut toml::Table, vision_scale: f64) {
    set_simulation(table, "client_overhead_ms", CLIENT_OVERHEAD_MS.into());
    for model in tables(table, "models") {
        let name = model.get("name").and_then(toml::Value::as_str);
        let is_language = name.is_some_and(|name| LANGUAGE_MODELS.contains(&name));
        let scale = if is_language {
            LANGUAGE_SCALE
        } else {
            vision_scale
        };
        model.insert("latency_scale".to_owned(), scale.into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_calibrated_world_slows_vision_more_than_language() {
        let setting = Setting::new("six", "6.10-gpus-6");
        let scales = |calibration| {
            let scenario = setting
                .scenario(calibration)
                .expect("a scenario of the repository");
            let scales = scenario.workloads.iter().map(|load| load.latency_scale);
            (
                scales.collect::<Vec<f64>>(),
                scenario.simulation.client_overhead.as_nanos(),
            )
        };
        assert_eq!(scales(Calibration::Nominal), (vec![1.0; 4], 0));
        // resnet50 and mobilenet_v2 are vision models, bert and gpt2 are language models.
        assert_eq!(
            scales(Calibration::Calibrated),
            (vec![1.22, 1.22, 1.05, 1.05], 308_000)
        );
    }
}
