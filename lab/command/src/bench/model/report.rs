//! The report of a load on one model, as JSON and as text.

use std::{collections::BTreeMap, time::Duration};

use packhorse_terminal::output::{self, format_number};
use serde::Serialize;

use super::{
    arrivals::Arrivals,
    recorder::{Ends, Recorder, STAGES, StageSample, Times},
};

/// The parts of the slowest requests whose stages are reported apart, with their names.
pub(super) const SLOWEST: [(&str, f64); 3] =
    [("all", 1.0), ("slowest 5 %", 0.05), ("slowest 1 %", 0.01)];

/// The load that was sent.
#[derive(Clone, Debug, Serialize)]
pub(super) struct LoadReport {
    pub(super) model: String,
    pub(super) version: Option<u32>,
    pub(super) url: String,
    /// The rate of an open loop, in requests per second.
    pub(super) rate_rps: Option<f64>,
    /// The kind of the gaps of an open loop.
    pub(super) arrivals: Option<&'static str>,
    pub(super) seed: Option<u64>,
    /// The clients of a closed loop.
    pub(super) concurrency: Option<u32>,
    /// The threads that send.
    pub(super) threads: u32,
    pub(super) warm_up_s: f64,
    pub(super) duration_s: f64,
    /// The bytes of a request's body.
    pub(super) body_bytes: usize,
    pub(super) rows: u64,
    pub(super) json_tensors: bool,
    pub(super) deadline_ms: Option<u64>,
    pub(super) slo_ms: Option<f64>,
}

/// The report of a load.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Report {
    #[serde(flatten)]
    pub(super) load: LoadReport,
    /// The requests that belong to the measured time, by their end.
    pub(super) requests: RequestCounts,
    /// Those requests per second of the measured time.
    pub(super) offered_rps: f64,
    /// The answers per second: of an open loop, until the last one.
    pub(super) throughput_rps: f64,
    /// The answers within the SLO per second of the measured time; null without an SLO.
    pub(super) goodput_rps: Option<f64>,
    /// The part of all requests that was answered within the SLO; null without an SLO or requests.
    pub(super) within_slo: Option<f64>,
    /// The latencies of answered requests, from the due time.
    pub(super) latency_ms: TimesReport,
    /// The delays from the due time until a request was sent: of the generator, and for want of a free connection.
    pub(super) lateness_ms: TimesReport,
    /// The delays of the generator alone, from when a request was due and a connection free.
    pub(super) own_delay_ms: TimesReport,
    /// The stages of answered requests; empty without `--stages`.
    pub(super) stages: Vec<StageReport>,
    /// The numbers of requests by error.
    pub(super) errors: BTreeMap<String, u64>,
    /// The CPU time of the generator during the whole load, in seconds.
    pub(super) client_cpu_s: f64,
}

#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct RequestCounts {
    all: u64,
    answered: u64,
    within_slo: Option<u64>,
    refused: u64,
    expired: u64,
    failed: u64,
    lost: u64,
}

#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct TimesReport {
    pub(super) mean: Option<f64>,
    pub(super) p50: Option<f64>,
    pub(super) p90: Option<f64>,
    pub(super) p95: Option<f64>,
    pub(super) p99: Option<f64>,
    pub(super) p999: Option<f64>,
    pub(super) max: Option<f64>,
}

/// A stage: its mean in all requests, in the slowest 5 % and in the slowest 1 %, and percentiles over all. The means add up to those
/// of the latency.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct StageReport {
    pub(super) stage: &'static str,
    pub(super) mean_ms: f64,
    pub(super) slowest_5pct_mean_ms: f64,
    pub(super) slowest_1pct_mean_ms: f64,
    pub(super) p50_ms: f64,
    pub(super) p99_ms: f64,
}

impl From<&Times> for TimesReport {
    fn from(times: &Times) -> Self {
        Self {
            mean: times.mean_ms(),
            p50: times.quantile_ms(0.5),
            p90: times.quantile_ms(0.9),
            p95: times.quantile_ms(0.95),
            p99: times.quantile_ms(0.99),
            p999: times.quantile_ms(0.999),
            max: times.max_ms(),
        }
    }
}

impl Report {
    pub(super) fn new(load: LoadReport, recorder: &Recorder, client_cpu: Duration) -> Self {
        let Ends {
            answered,
            within_slo,
            refused,
            expired,
            failed,
            lost,
        } = recorder.ends;
        let all = recorder.ends.all();
        let has_slo = load.slo_ms.is_some();
        let window_s = recorder.window_s();
        let throughput_s = match load.rate_rps {
            Some(_) => recorder.until_last_end_s(),
            None => window_s,
        };
        Self {
            load,
            requests: RequestCounts {
                all,
                answered,
                within_slo: has_slo.then_some(within_slo),
                refused,
                expired,
                failed,
                lost,
            },
            offered_rps: all as f64 / window_s,
            throughput_rps: answered as f64 / throughput_s,
            goodput_rps: has_slo.then_some(within_slo as f64 / window_s),
            within_slo: (has_slo && all > 0).then(|| within_slo as f64 / all as f64),
            latency_ms: (&recorder.latency).into(),
            lateness_ms: (&recorder.lateness).into(),
            own_delay_ms: (&recorder.own_delay).into(),
            stages: stage_reports(&recorder.stages),
            errors: recorder.errors.clone(),
            client_cpu_s: client_cpu.as_secs_f64(),
        }
    }

    pub(super) fn print_text(&self) -> anyhow::Result<()> {
        output::print_line(self.load.describe())?;
        let mut counts = output::new_table(&["", "REQUESTS", "PER SECOND"]);
        let requests = &self.requests;
        let window_s = self.load.duration_s;
        let mut row = |name: &str, count: u64, per_second: f64| {
            counts.add_row([
                name.to_owned(),
                count.to_string(),
                format_number(per_second),
            ]);
        };
        row("offered", requests.all, self.offered_rps);
        row("answered", requests.answered, self.throughput_rps);
        if let (Some(count), Some(goodput)) = (requests.within_slo, self.goodput_rps) {
            row("within the SLO", count, goodput);
        }
        let others = [
            ("refused", requests.refused),
            ("expired", requests.expired),
            ("failed", requests.failed),
            ("lost", requests.lost),
        ];
        for (name, count) in others.into_iter().filter(|(_, count)| *count > 0) {
            row(name, count, count as f64 / window_s);
        }
        output::print_line(output::table_text(&counts))?;
        let header = ["MS", "MEAN", "P50", "P90", "P95", "P99", "P99.9", "MAX"];
        let mut times = output::new_table(&header);
        times.add_row(self.latency_ms.row("latency"));
        if self.load.rate_rps.is_some() {
            times.add_row(self.lateness_ms.row("of it, sent late"));
            times.add_row(self.own_delay_ms.row("of that, by the generator"));
        }
        output::print_line(output::table_text(&times))?;
        if !self.stages.is_empty() {
            output::print_line(output::table_text(&self.stage_table()))?;
        }
        for (error, count) in &self.errors {
            output::print_line(format!("{count} requests: {error}"))?;
        }
        Ok(())
    }

    fn stage_table(&self) -> comfy_table::Table {
        let header = [
            "STAGE, MS",
            "MEAN",
            "SLOWEST 5 %",
            "SLOWEST 1 %",
            "P50",
            "P99",
        ];
        let mut table = output::new_table(&header);
        let mut sums = [0.0; 3];
        for stage in &self.stages {
            let means = [
                stage.mean_ms,
                stage.slowest_5pct_mean_ms,
                stage.slowest_1pct_mean_ms,
            ];
            for (sum, mean) in sums.iter_mut().zip(means) {
                *sum += mean;
            }
            let mut row = vec![stage.stage.to_owned()];
            row.extend(means.map(format_ms));
            row.extend([stage.p50_ms, stage.p99_ms].map(format_ms));
            table.add_row(row);
        }
        let mut row = vec!["latency".to_owned()];
        row.extend(sums.map(format_ms));
        table.add_row(row);
        table
    }
}

impl LoadReport {
    /// Returns a description of the load in one line.
    fn describe(&self) -> String {
        let pace = match (self.rate_rps, self.arrivals, self.seed) {
            (Some(rate), Some(arrivals), Some(seed)) => format!(
                "open loop, {} requests/s, {arrivals} arrivals, seed {seed}",
                format_number(rate)
            ),
            _ => format!("closed loop, {} at once", self.concurrency.unwrap_or(1)),
        };
        let slo = self.slo_ms.map_or_else(
            || "no SLO".to_owned(),
            |slo| format!("SLO {} ms", format_number(slo)),
        );
        format!(
            "{} at {}: {pace}, {} s after {} s, {} bytes per request, {slo}",
            self.model,
            self.url,
            format_number(self.duration_s),
            format_number(self.warm_up_s),
            self.body_bytes
        )
    }
}

impl TimesReport {
    fn row(&self, name: &str) -> Vec<String> {
        let mut row = vec![name.to_owned()];
        let times = [
            self.mean, self.p50, self.p90, self.p95, self.p99, self.p999, self.max,
        ];
        row.extend(times.map(|ms| ms.map_or_else(|| "-".to_owned(), format_ms)));
        row
    }
}

/// Formats milliseconds with microseconds below 10.
pub(super) fn format_ms(ms: f64) -> String {
    if ms < 10.0 {
        format!("{ms:.3}")
    } else {
        format!("{ms:.1}")
    }
}

/// Returns the name of a kind of arrivals in reports.
pub(super) fn arrivals_name(arrivals: Arrivals) -> &'static str {
    match arrivals {
        Arrivals::Poisson => "poisson",
        Arrivals::Uniform => "uniform",
    }
}

fn stage_reports(samples: &[StageSample]) -> Vec<StageReport> {
    if samples.is_empty() {
        return Vec::new();
    }
    let mut by_latency: Vec<&StageSample> = samples.iter().collect();
    let latency = |sample: &&StageSample| sample.iter().sum::<f32>();
    by_latency.sort_by(|a, b| latency(b).total_cmp(&latency(a)));
    let report = |(i, stage): (usize, &'static str)| {
        let mean = |part: f64| {
            let count = ((samples.len() as f64 * part).ceil() as usize).max(1);
            let slowest = by_latency.iter().take(count);
            slowest.map(|sample| f64::from(sample[i])).sum::<f64>() / count as f64
        };
        let mut times: Vec<f32> = samples.iter().map(|sample| sample[i]).collect();
        times.sort_by(f32::total_cmp);
        let quantile = |part: f64| {
            let rank = (times.len() as f64 * part).ceil() as usize;
            f64::from(times[rank.clamp(1, times.len()) - 1])
        };
        let [mean_ms, slowest_5pct_mean_ms, slowest_1pct_mean_ms] =
            SLOWEST.map(|(_, part)| mean(part));
        StageReport {
            stage,
            mean_ms,
            slowest_5pct_mean_ms,
            slowest_1pct_mean_ms,
            p50_ms: quantile(0.5),
            p99_ms: quantile(0.99),
        }
    };
    STAGES.into_iter().enumerate().map(report).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stages_of_a_hundred_requests_are_those_worked_by_hand() {
        let place = |name| STAGES.iter().position(|stage| *stage == name).unwrap();
        // The i-th request waits i ms in the queue and computes for 2 ms.
        let sample = |i: u8| {
            let mut sample = [0.0; STAGES.len()];
            (sample[place("queue")], sample[place("compute")]) = (f32::from(i), 2.0);
            sample
        };
        let samples: Vec<StageSample> = (1..=100).map(sample).collect();
        let stages = stage_reports(&samples);
        let queue = StageReport {
            stage: "queue",
            mean_ms: 50.5,
            // 96, 97, 98, 99 and 100 ms.
            slowest_5pct_mean_ms: 98.0,
            slowest_1pct_mean_ms: 100.0,
            p50_ms: 50.0,
            p99_ms: 99.0,
        };
        let (queued, computed) = (stages[place("queue")], stages[place("compute")]);
        assert_eq!((queued, computed.mean_ms), (queue, 2.0));
        let sum: f64 = stages.iter().map(|stage| stage.mean_ms).sum();
        assert!((sum - 52.5).abs() < 1e-9, "the means add up: {sum}");
        assert_eq!(stage_reports(&[]), []);
    }
}
