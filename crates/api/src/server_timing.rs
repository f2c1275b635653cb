//! The durations of an answered request's stages, as the value of the header `Server-Timing`.
//!
//! Source: W3C, "Server Timing", Working Draft, section 4: a list of `NAME;dur=MILLISECONDS`. The gateway adds the header to an answer
//! whose request has the header [`STAGES_HEADER`].

use std::{fmt, str::FromStr};

use crate::RequestStages;

/// The header of an inference request that asks for the durations of its stages, with any value.
pub const STAGES_HEADER: &str = "x-packhorse-stages";

/// The header of an answer to a request for a family: the model that answered, as `NAME:VERSION`.
pub const MODEL_HEADER: &str = "x-packhorse-model";

/// The header of an answer of a model with a cache: `hit` if an earlier request had the same inputs, else `miss`.
pub const CACHE_HEADER: &str = "x-packhorse-cache";

/// The header of an answer with the durations.
pub const SERVER_TIMING_HEADER: &str = "server-timing";

/// The stages of an answered request in their order, and the time in the gateway, in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ServerTiming {
    /// The stages that the admin API shows, too.
    pub stages: RequestStages,
    /// The time in the inbox of the task that decides, between `receive` and `batch`.
    pub inbox: f64,
    /// The time from the head of the HTTP request until the answer was encoded.
    pub total: f64,
}

/// The error for a value that no gateway of this version writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected a list of NAME;dur=MILLISECONDS with an entry `total`")]
pub struct UnknownTiming;

impl ServerTiming {
    /// The names of the stages in their order, of which the last is the rest: the way of the answer back from the task that decides to
    /// the encoded response.
    pub const NAMES: [&'static str; 14] = [
        "receive",
        "decode",
        "tokenize",
        "lookup",
        "inbox",
        "load",
        "batch",
        "queue",
        "network",
        "worker_queue",
        "copy_in",
        "compute",
        "copy_out",
        "answer",
    ];

    /// Returns the durations in the order of [`ServerTiming::NAMES`], which add up to the total.
    pub fn durations(&self) -> [f64; 14] {
        let RequestStages {
            receive,
            decode,
            tokenize,
            lookup,
            load,
            batch,
            queue,
            network,
            worker_queue,
            copy_in,
            compute,
            copy_out,
        } = self.stages;
        let measured = [
            receive,
            decode,
            tokenize,
            lookup,
            self.inbox,
            load,
            batch,
            queue,
            network,
            worker_queue,
            copy_in,
            compute,
            copy_out,
        ];
        let mut durations = [0.0; 14];
        durations[..13].copy_from_slice(&measured);
        durations[13] = (self.total - measured.iter().sum::<f64>()).max(0.0);
        durations
    }

    fn field(&mut self, name: &str) -> Option<&mut f64> {
        let stages = &mut self.stages;
        Some(match name {
            "receive" => &mut stages.receive,
            "decode" => &mut stages.decode,
            "tokenize" => &mut stages.tokenize,
            "lookup" => &mut stages.lookup,
            "inbox" => &mut self.inbox,
            "load" => &mut stages.load,
            "batch" => &mut stages.batch,
            "queue" => &mut stages.queue,
            "network" => &mut stages.network,
            "worker_queue" => &mut stages.worker_queue,
            "copy_in" => &mut stages.copy_in,
            "compute" => &mut stages.compute,
            "copy_out" => &mut stages.copy_out,
            "total" => &mut self.total,
            _ => return None,
        })
    }
}

/// Writes the header's value, with microseconds.
impl fmt::Display for ServerTiming {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, duration) in Self::NAMES.iter().zip(self.durations()).take(13) {
            write!(f, "{name};dur={duration:.3}, ")?;
        }
        write!(f, "total;dur={:.3}", self.total)
    }
}

/// Reads the header's value. Entries with other names are skipped, so that a proxy may add its own.
impl FromStr for ServerTiming {
    type Err = UnknownTiming;

    fn from_str(text: &str) -> Result<Self, UnknownTiming> {
        let mut timing = Self {
            total: f64::NAN,
            ..Self::default()
        };
        for entry in text.split(',') {
            let mut parts = entry.split(';').map(str::trim);
            let Some(field) = parts.next().and_then(|name| timing.field(name)) else {
                continue;
            };
            let duration = parts.find_map(|part| part.strip_prefix("dur="));
            let duration = duration.and_then(|text| text.parse::<f64>().ok());
            *field = duration
                .filter(|ms| ms.is_finite() && *ms >= 0.0)
                .ok_or(UnknownTiming)?;
        }
        if timing.total.is_nan() {
            return Err(UnknownTiming);
        }
        Ok(timing)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_is_read_and_adds_up() {
        let timing = ServerTiming {
            stages: RequestStages {
                receive: 0.25,
                decode: 0.0,
                tokenize: 0.002,
                lookup: 0.0,
                load: 0.01,
                batch: 0.5,
                queue: 1.0,
                network: 0.125,
                worker_queue: 0.0,
                copy_in: 0.001,
                compute: 4.0,
                copy_out: 0.002,
            },
            inbox: 0.03,
            total: 6.0,
        };
        let text = timing.to_string();
        assert!(
            text.starts_with(
                "receive;dur=0.250, decode;dur=0.000, tokenize;dur=0.002, lookup;dur=0.000, inbox;dur=0.030, load;dur=0.010, batch;dur=0.500"
            ),
            "{text}"
        );
        assert_eq!(text.parse(), Ok(timing));
        let durations = timing.durations();
        assert!((durations.iter().sum::<f64>() - 6.0).abs() < 1e-9);
        // 6 − (0.25 + 0.002 + 0.03 + 0.01 + 0.5 + 1 + 0.125 + 0.001 + 4 + 0.002).
        assert!((durations[13] - 0.08).abs() < 1e-9);
    }

    #[test]
    fn other_entries_are_skipped_and_malformed_ones_refused() {
        let proxied: ServerTiming = "cache;desc=\"hit\", total;desc=all;dur=2, compute;dur=1.5"
            .parse()
            .unwrap();
        assert_eq!((proxied.total, proxied.stages.compute), (2.0, 1.5));
        for bad in [
            "",
            "compute;dur=1",
            "total",
            "total;dur=x",
            "total;dur=-1",
            "total;dur=inf",
        ] {
            assert_eq!(bad.parse::<ServerTiming>(), Err(UnknownTiming), "{bad}");
        }
    }
}
