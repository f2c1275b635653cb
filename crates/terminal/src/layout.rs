//! A plan as text: the replicas of each device with their batch sizes and compute shares, and how much of its rate each model
//! gets. The text fits 100 columns: long names are shortened.

use packhorse_cluster::ByteCount;

use crate::output::format_number;

/// Width of the bar of a whole device or of a model's whole rate, in characters.
const BAR: usize = 16;
/// The longest name that is not shortened, in characters.
const NAME: usize = 28;
/// Width of the narrowest column of names, in characters.
const NARROWEST: usize = 8;

/// A plan to be printed.
pub struct Layout {
    /// The devices in the order in which they are printed.
    pub devices: Vec<DeviceLayout>,
    /// The models in the order in which they are printed.
    pub models: Vec<ModelLayout>,
}

/// A device with its replicas.
pub struct DeviceLayout {
    /// The device's number, or NODE/DEVICE.
    pub name: String,
    /// The kind of the device.
    pub kind: String,
    /// Its memory, if known.
    pub memory: Option<ByteCount>,
    /// The replicas that run there.
    pub replicas: Vec<ReplicaLayout>,
}

/// A replica on its device.
pub struct ReplicaLayout {
    /// The model's name, with a version other than the first.
    pub model: String,
    /// The largest number of requests in a batch.
    pub batch_size: u32,
    /// Its compute share in percent; `None` is no limit.
    pub share_pct: Option<f64>,
    /// Measurements of its full batches, if there is a profile.
    pub measured: Option<Measured>,
}

/// Measurements of a replica that runs alone.
pub struct Measured {
    /// Memory of the process, if known.
    pub memory: Option<ByteCount>,
    /// Latency of a full batch, in milliseconds.
    pub latency_ms: f64,
    /// Throughput with full batches, in requests per second.
    pub throughput: f64,
}

/// A model with its rate and expected goodput.
pub struct ModelLayout {
    /// The model's name, with a version other than the first.
    pub name: String,
    /// The requests per second that are planned for.
    pub rate_rps: f64,
    /// Those of them that are expected to be answered in time.
    pub predicted_goodput_rps: f64,
    /// The number of replicas.
    pub replicas: usize,
    /// The reason why it is not fully served, if it is not.
    pub shortfall: Option<String>,
}

impl Layout {
    /// Returns the devices, then the models, then the reasons why models get less than their rate.
    pub fn text(&self) -> String {
        let mut lines = self.device_lines();
        lines.push(String::new());
        lines.extend(self.model_lines());
        lines.extend(self.reasons());
        lines.join("\n")
    }

    fn name_width(&self) -> usize {
        let longest = self.models.iter().map(|model| model.name.chars().count());
        longest.max().unwrap_or(0).clamp(NARROWEST, NAME)
    }

    fn device_lines(&self) -> Vec<String> {
        let mut lines = Vec::new();
        let mut idle: Vec<&DeviceLayout> = Vec::new();
        for device in &self.devices {
            if device.replicas.is_empty() {
                if idle.last().is_some_and(|last| last.kind != device.kind) {
                    lines.extend(idle_line(&std::mem::take(&mut idle)));
                }
                idle.push(device);
                continue;
            }
            lines.extend(idle_line(&std::mem::take(&mut idle)));
            lines.push(device_line(device));
            let last = device.replicas.len() - 1;
            let width = self.name_width();
            for (i, replica) in device.replicas.iter().enumerate() {
                let branch = if i == last { "└─" } else { "├─" };
                lines.push(format!("{branch} {}", replica.line(width)));
            }
        }
        lines.extend(idle_line(&idle));
        if lines.is_empty() {
            lines.push("no devices".to_owned());
        }
        lines
    }

    fn model_lines(&self) -> Vec<String> {
        if self.models.is_empty() {
            return vec!["no models".to_owned()];
        }
        let width = self.name_width();
        let header = format!(
            "{:width$}  {:>8}  {:>10}  {:BAR$}  {:>5}  {:>8}",
            "MODEL", "RATE/S", "EXPECTED/S", "", "", "REPLICAS"
        );
        let mut lines = vec![header];
        for model in &self.models {
            let fraction = model.served_fraction();
            lines.push(format!(
                "{:width$}  {:>8}  {:>10}  {}  {:>5}  {:>8}",
                shortened(&model.name),
                format_number(model.rate_rps),
                format_number(model.predicted_goodput_rps),
                bar(fraction),
                percent(fraction),
                model.replicas,
            ));
        }
        lines
    }

    fn reasons(&self) -> Vec<String> {
        let unserved = self.models.iter().filter(|model| model.replicas == 0);
        let short = |model: &&ModelLayout| model.replicas > 0 && model.shortfall.is_some();
        let reason = |state: &str, model: &ModelLayout| {
            let reason = model.shortfall.as_deref();
            let reason = reason.unwrap_or("the policy gives no reason");
            format!("{} is {state}: {reason}", model.name)
        };
        let mut lines: Vec<String> = unserved.map(|model| reason("not served", model)).collect();
        let short = self.models.iter().filter(short);
        lines.extend(short.map(|model| reason("not fully served", model)));
        if !lines.is_empty() {
            lines.insert(0, String::new());
        }
        lines
    }
}

impl ModelLayout {
    /// Returns the expected goodput as a fraction of the rate.
    fn served_fraction(&self) -> f64 {
        if self.rate_rps > 0.0 {
            self.predicted_goodput_rps / self.rate_rps
        } else {
            f64::from(u8::from(self.replicas > 0))
        }
    }
}

impl ReplicaLayout {
    fn line(&self, width: usize) -> String {
        let share = match self.share_pct {
            Some(share) => format!(
                "{} {:>6}",
                bar(share / 100.0),
                format!("{} %", format_number(share))
            ),
            None => format!("{:BAR$} {:>6}", "no limit", ""),
        };
        let measured = self.measured.as_ref().map_or(String::new(), |measured| {
            let memory = measured
                .memory
                .map_or("-".to_owned(), |memory| memory.to_string());
            format!(
                "  {memory:>9}  {:>7} ms  {:>6}/s",
                format_number(measured.latency_ms),
                format_number(measured.throughput)
            )
        });
        let line = format!(
            "{:width$}  batch {:<4} {share}{measured}",
            shortened(&self.model),
            self.batch_size
        );
        line.trim_end().to_owned()
    }
}

/// Returns the line of a device that has replicas.
fn device_line(device: &DeviceLayout) -> String {
    let used: Option<ByteCount> = device
        .replicas
        .iter()
        .map(|replica| replica.measured.as_ref()?.memory)
        .sum();
    let memory = match (used, device.memory) {
        (Some(used), Some(memory)) => format!("  {used} of {memory} planned"),
        (None, Some(memory)) => format!("  {memory}"),
        _ => String::new(),
    };
    format!("{}  {}{memory}", device.name, device.kind)
}

/// Returns one line for consecutive devices of one kind without replicas.
fn idle_line(idle: &[&DeviceLayout]) -> Option<String> {
    let (first, last) = (idle.first()?, idle.last()?);
    Some(match idle.len() {
        1 => format!("{}  {}  idle", first.name, first.kind),
        count => format!(
            "{} to {}  {count} x {}  idle",
            first.name, last.name, first.kind
        ),
    })
}

/// Returns a bar for a fraction: it has a full character if the fraction is above 0, and is full only if the fraction is 1.
fn bar(fraction: f64) -> String {
    let fraction = fraction.clamp(0.0, 1.0);
    let mut full = (fraction * BAR as f64).round() as usize;
    if fraction > 0.0 {
        full = full.max(1);
    }
    if fraction < 1.0 - 1e-9 {
        full = full.min(BAR - 1);
    }
    format!("{}{}", "█".repeat(full), "░".repeat(BAR - full))
}

/// Formats a fraction as a percentage, rounded down: only 1 is 100 %.
fn percent(fraction: f64) -> String {
    format!("{:.0} %", (fraction * 100.0 + 1e-7).floor())
}

/// Returns a name of at most [`NAME`] characters: the beginning and the end of a longer one.
fn shortened(name: &str) -> String {
    let characters: Vec<char> = name.chars().collect();
    if characters.len() <= NAME {
        return name.to_owned();
    }
    let end = (NAME - 1) / 2;
    let beginning: String = characters[..NAME - 1 - end].iter().collect();
    let ending: String = characters[characters.len() - end..].iter().collect();
    format!("{beginning}…{ending}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn replica(model: &str, batch_size: u32, share_pct: Option<f64>) -> ReplicaLayout {
        ReplicaLayout {
            model: model.to_owned(),
            batch_size,
            share_pct,
            measured: Some(Measured {
                memory: ByteCount::from_mib(272),
                latency_ms: 1.428,
                throughput: 2801.75,
            }),
        }
    }

    fn device(name: &str, replicas: Vec<ReplicaLayout>) -> DeviceLayout {
        DeviceLayout {
            name: name.to_owned(),
            kind: "V100-SXM2-16GB".to_owned(),
            memory: ByteCount::from_mib(16_384),
            replicas,
        }
    }

    fn model(name: &str, goodput: f64, replicas: usize, why: Option<&str>) -> ModelLayout {
        ModelLayout {
            name: name.to_owned(),
            rate_rps: 400.0,
            predicted_goodput_rps: goodput,
            replicas,
            shortfall: why.map(str::to_owned),
        }
    }

    #[test]
    fn devices_models_and_reasons_are_printed_below_each_other() {
        let layout = Layout {
            devices: vec![
                device(
                    "0",
                    vec![replica("alexnet", 4, Some(10.0)), replica("t5", 128, None)],
                ),
                device("1", Vec::new()),
                device("2", Vec::new()),
                device("3", vec![replica("t5", 16, Some(97.49))]),
                device("4", Vec::new()),
            ],
            models: vec![
                model("alexnet", 400.0, 1, None),
                model(
                    "bert",
                    0.0,
                    0,
                    Some("it needs 5 replicas, and there are 4 devices"),
                ),
                model(
                    "t5",
                    399.9,
                    2,
                    Some("its 2 replicas carry 399.9 of 400 requests/s"),
                ),
            ],
        };
        let expected = "\
0  V100-SXM2-16GB  544.0 MiB of 16.0 GiB planned
├─ alexnet   batch 4    ██░░░░░░░░░░░░░░   10 %  272.0 MiB      1.4 ms    2802/s
└─ t5        batch 128  no limit                 272.0 MiB      1.4 ms    2802/s
1 to 2  2 x V100-SXM2-16GB  idle
3  V100-SXM2-16GB  272.0 MiB of 16.0 GiB planned
└─ t5        batch 16   ███████████████░ 97.5 %  272.0 MiB      1.4 ms    2802/s
4  V100-SXM2-16GB  idle

MODEL       RATE/S  EXPECTED/S                           REPLICAS
alexnet        400         400  ████████████████  100 %         1
bert           400           0  ░░░░░░░░░░░░░░░░    0 %         0
t5             400       399.9  ███████████████░   99 %         2

bert is not served: it needs 5 replicas, and there are 4 devices
t5 is not fully served: its 2 replicas carry 399.9 of 400 requests/s";
        assert_eq!(layout.text(), expected);
    }

    #[test]
    fn thirty_models_on_eight_devices_fit_a_hundred_columns() {
        let name = |i: usize| format!("{}-{i}", "a-model-with-a-long-name-".repeat(4));
        let devices = (0..8).map(|i| {
            let replicas = (0..5).map(|j| replica(&name(i * 4 + j), 128, Some(19.55)));
            device(&i.to_string(), replicas.collect())
        });
        let models = (0..30).map(|i| model(&name(i), 123.45, 2, None));
        let layout = Layout {
            devices: devices.collect(),
            models: models.collect(),
        };
        let text = layout.text();
        let widest = text.lines().map(|line| line.chars().count()).max();
        assert!(widest <= Some(100), "{widest:?}\n{text}");
        assert_eq!(text.lines().count(), 8 * 6 + 1 + 31);
        assert!(text.contains("a-model-with-a…long-name--29"), "{text}");
    }

    #[test]
    fn a_plan_without_models_or_devices_says_so() {
        let layout = Layout {
            devices: Vec::new(),
            models: Vec::new(),
        };
        assert_eq!(layout.text(), "no devices\n\nno models");
    }
}
