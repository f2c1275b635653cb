//! The page of the benchmark.

use std::{fmt::Write as _, fs};

use anyhow::Context as _;

use super::measured::{BATCH, CLIENTS, Measured, Options, Rounds, Way};
use crate::bench::{machine, today};

/// The explanation of [`Way::Package`].
const PACKAGE: &str = "* AOTInductor package: the same network compiled ahead of time for batches of 1 and 8 \
    (`examples/export_package.py`).\n";

/// All measurements.
pub(super) struct Results {
    /// Batches of [`BATCH`] images, one after the other or at the same time.
    pub(super) saturated: Vec<Rounds>,
    /// One image at a time.
    pub(super) single: Vec<Rounds>,
}

impl Way {
    fn name(self) -> &'static str {
        match self {
            Self::Defaults => "libtorch's defaults",
            Self::KeptMemory => "memory kept",
            Self::Optimised => "optimised, memory kept",
            Self::Package => "AOTInductor package, memory kept",
            Self::Pipeline => "a worker's pipeline",
            Self::Packhorse => "Packhorse",
        }
    }
}

impl Results {
    /// Returns the page.
    pub(super) fn to_markdown(&self, options: &Options) -> anyhow::Result<String> {
        let mut page = introduction(options)?;
        writeln!(
            page,
            "\n## Batches of {BATCH} images\n\n\
             Packhorse has {CLIENTS} clients with one image each, which ask again as soon as they have their answer, and is measured from the second \
             second on: as many requests are then under way when the measurement begins as when it ends.\n\n\
             | | images/s | over the defaults | over optimised libtorch | CPU ms per image | faults per image | start, s |\n\
             |---|--:|--:|--:|--:|--:|--:|"
        )?;
        for Rounds { way, rounds } in &self.saturated {
            let number = |number: fn(&Measured) -> f64| median(rounds.iter().map(number));
            let start = rounds.iter().filter_map(|round| round.start_s);
            writeln!(
                page,
                "| {} | {} | {} | {} | {} | {} | {} |",
                way.name(),
                text(number(|round| round.images_per_s), 1),
                text(self.speed_over(Way::Defaults, rounds), 2),
                text(self.speed_over(Way::Optimised, rounds), 2),
                text(number(|round| round.cpu_ms), 2),
                text(number(|round| round.faults), 1),
                text(median(start), 2),
            )?;
        }
        page += "\n## One image\n\n\
            One after the other; Packhorse has one client.\n\n\
            | | p50 ms | CPU ms per image | faults per image |\n|---|--:|--:|--:|\n";
        for Rounds { way, rounds } in &self.single {
            let number = |number: fn(&Measured) -> f64| median(rounds.iter().map(number));
            writeln!(
                page,
                "| {} | {} | {} | {} |",
                way.name(),
                text(median(rounds.iter().filter_map(|round| round.p50_ms)), 2),
                text(number(|round| round.cpu_ms), 2),
                text(number(|round| round.faults), 1),
            )?;
        }
        Ok(page)
    }

    /// Returns the median over the rounds of the ratio of images per second to those of another way in the same round.
    fn speed_over(&self, base: Way, rounds: &[Measured]) -> Option<f64> {
        let base = self.saturated.iter().find(|other| other.way == base)?;
        let pairs = rounds.iter().zip(&base.rounds);
        median(pairs.map(|(round, base)| round.images_per_s / base.images_per_s))
    }
}

fn introduction(options: &Options) -> anyhow::Result<String> {
    let load = fs::read_to_string("/proc/loadavg").context("read the load average")?;
    let load = load.split(' ').next().unwrap_or_default();
    let Options {
        seconds,
        rounds,
        dev,
        without_package,
        ..
    } = options;
    let (without, package) = if *without_package {
        (" --without-package", "")
    } else {
        ("", PACKAGE)
    };
    let (flag, build) = if *dev {
        (" --dev", "our programs as the profile `dev` builds them")
    } else {
        ("", "our programs as they are released")
    };
    Ok(format!(
        "# A network on the CPU\n\n\
         Made by `cargo xtask bench cpu --seconds {seconds} --rounds {rounds}{flag}{without}` on {}, {}, {build}.\n\n\
         mobilenet_v2 with random weights (`xtask/src/bench/mobilenet.py`), images of 3 × 224 × 224 numbers, 602,112 bytes. The network computes on one \
         thread everywhere; Packhorse's agent offers `--devices cpu:1`, and its gateway and client have the other cores.\n\n\
         * libtorch's defaults: the TorchScript file as it is, in a tight loop without a pipeline or inputs that change (`packhorse-worker bench --tight \
         --defaults`). glibc gives the memory of activations back to the kernel, and page faults bring it back.\n\
         * Memory kept: the same with the environment by which workers keep it (`worker-agent/src/handoff/environment.rs`).\n\
         * Optimised: the module is frozen and rewritten to oneDNN's operators, as workers do it (`--tight`).\n\
         {package}\
         * A worker's pipeline: batches that are copied into the worker's buffers, computed and copied out, without gateway and network.\n\
         * Packhorse: HTTP with binary tensors from `packhorse bench` through gateway and worker, with the TorchScript file.\n\n\
         All are measured in turns within one run; the tables have the medians of the rounds, and of the ratios within a round. The machine's load average \
         was {load} after the run; other work takes its cores and caches from all of them, and a tight loop and a \
         chain of processes get different parts of a busy machine: then only CPU times are comparable. CPU time and page faults are those of the serving processes, \
         in a tight loop of libtorch's, and start is the time for loading, optimising and warming up.\n",
        machine()?,
        today()?,
    ))
}

/// Returns the median, the lower of two middle numbers; `None` of none.
fn median(numbers: impl Iterator<Item = f64>) -> Option<f64> {
    let mut numbers: Vec<f64> = numbers.collect();
    numbers.sort_by(f64::total_cmp);
    numbers.get(numbers.len().saturating_sub(1) / 2).copied()
}

fn text(number: Option<f64>, digits: usize) -> String {
    number.map_or_else(String::new, |number| format!("{number:.digits$}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn speeds_are_compared_within_a_round() {
        let rounds = |way, speeds: [f64; 3]| Rounds {
            way,
            rounds: speeds
                .map(|images_per_s| Measured {
                    images_per_s,
                    p50_ms: None,
                    cpu_ms: 1.0,
                    faults: 0.0,
                    start_s: None,
                })
                .to_vec(),
        };
        let results = Results {
            saturated: vec![
                rounds(Way::Defaults, [10.0, 20.0, 40.0]),
                rounds(Way::Optimised, [30.0, 80.0, 40.0]),
            ],
            single: Vec::new(),
        };
        let optimised = &results.saturated[1].rounds;
        assert_eq!(results.speed_over(Way::Defaults, optimised), Some(3.0));
        assert_eq!(results.speed_over(Way::Package, optimised), None);
        assert_eq!(median([].into_iter()), None);
    }
}
