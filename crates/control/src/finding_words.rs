//! The numbers and names in the texts of findings.

use std::time::Duration;

use packhorse_cluster::ModelId;

use crate::{
    missed_requests::{MissCause, RequestStage},
    service_levels::Load,
};

/// The largest number of models that a text or the evidence names.
pub(crate) const MAX_NAMED: usize = 5;

/// Returns where requests spent their time.
pub(crate) fn stage_text(stage: RequestStage) -> &'static str {
    match stage {
        RequestStage::Receive => "until they were received",
        RequestStage::Load => "waiting for the model's weights on the device",
        RequestStage::Batch => "waiting for the rest of the batch",
        RequestStage::Queue => "in the queue",
        RequestStage::Uncomputed => "in a batch that was not computed",
        RequestStage::Network => "in the network",
        RequestStage::WorkerQueue => "in the worker's queue",
        RequestStage::CopyIn => "copying in",
        RequestStage::Compute => "computing",
        RequestStage::CopyOut => "copying out",
    }
}

/// Returns how requests ended.
pub(crate) fn ending_text(cause: MissCause) -> &'static str {
    match cause {
        MissCause::Late => "were answered late",
        MissCause::Refused => "were refused on arrival",
        MissCause::Expired => "expired in the queue",
        MissCause::Lost => "were lost with their workers",
        MissCause::Failed => "failed",
    }
}

/// Returns the names of models, a few of them.
pub(crate) fn names(ids: &[&ModelId]) -> String {
    let mut named: Vec<String> = ids
        .iter()
        .take(MAX_NAMED)
        .map(ToString::to_string)
        .collect();
    let more = ids.len() - named.len();
    if more > 0 {
        named.push(format!("{more} more"));
    }
    let word = if ids.len() == 1 { "model" } else { "models" };
    format!("{word} {}", named.join(", "))
}

/// Returns a part from 0 to 1 in percent. Only all is 100 %, and only nothing 0 %.
pub(crate) fn percent(part: f64) -> String {
    let percent = (part * 100.0).clamp(0.0, 100.0);
    if percent > 99.0 && percent < 100.0 {
        "more than 99 %".to_owned()
    } else if percent > 0.0 && percent < 1.0 {
        "less than 1 %".to_owned()
    } else {
        format!("{percent:.0} %")
    }
}

/// Returns a rate of requests with three digits at most.
pub(crate) fn rate(rps: f64) -> String {
    rate_of("requests", rps)
}

fn rate_of(things: &str, rps: f64) -> String {
    let rps = if rps.is_finite() { rps.max(0.0) } else { 0.0 };
    if rps > 0.0 && rps < 0.05 {
        format!("less than 0.1 {things}/s")
    } else if rps < 9.95 {
        format!("{rps:.1} {things}/s")
    } else {
        format!("{rps:.0} {things}/s")
    }
}

/// Returns the requests that came beside those that were planned for, with the verb `came`. Where requests have several rows, both are of rows, which
/// a plan is for.
pub(crate) fn load_text(load: Load, came: &str, about: &str) -> String {
    if load.rows < 1.05 {
        let (offered, planned) = (rate(load.offered_rps), rate(load.planned_rps));
        return format!("{offered} {came}{about}, and {planned} were planned for");
    }
    let requests = rate(load.offered_rps / load.rows);
    let [offered, planned] = [load.offered_rps, load.planned_rps].map(|rps| rate_of("rows", rps));
    let each = load.rows;
    format!("{requests} of {each:.1} rows {came}{about}, {offered}, and {planned} were planned for")
}

/// Returns how many times as long something takes.
pub(crate) fn factor(factor: f64) -> String {
    let factor = if factor.is_finite() {
        factor.clamp(0.0, 1000.0)
    } else {
        0.0
    };
    format!("{factor:.1}")
}

/// Returns a time in milliseconds.
pub(crate) fn milliseconds(time: Duration) -> String {
    let ms = time.as_secs_f64() * 1e3;
    if ms < 99.95 {
        format!("{ms:.1} ms")
    } else {
        format!("{ms:.0} ms")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_clamped_and_rounded() {
        for (part, text) in [
            (-0.5, "0 %"),
            (0.0, "0 %"),
            (0.0004, "less than 1 %"),
            (0.256_789, "26 %"),
            (0.9996, "more than 99 %"),
            (1.0, "100 %"),
            (1.7, "100 %"),
        ] {
            assert_eq!(percent(part), text);
        }
        for (rps, text) in [
            (f64::NAN, "0.0 requests/s"),
            (-1.0, "0.0 requests/s"),
            (0.01, "less than 0.1 requests/s"),
            (3.123_456, "3.1 requests/s"),
            (399.6, "400 requests/s"),
        ] {
            assert_eq!(rate(rps), text);
        }
        assert_eq!(factor(1.379), "1.4");
        assert_eq!(factor(f64::INFINITY), "0.0");
        assert_eq!(milliseconds(Duration::from_micros(15_260)), "15.3 ms");
    }

    #[test]
    fn a_load_is_said_in_rows_where_requests_have_several() {
        let load = Load {
            rows: 1.0,
            offered_rps: 1917.0,
            planned_rps: 50.0,
            seconds: 5.0,
        };
        let text = load_text(load, "come", " for model m:1");
        let said = "1917 requests/s come for model m:1, and 50 requests/s were planned for";
        assert_eq!(text, said);
        let load = Load {
            rows: 32.0,
            offered_rps: 2880.0,
            planned_rps: 186.0,
            seconds: 5.0,
        };
        let text = load_text(load, "come", "");
        let said = "90 requests/s of 32.0 rows come, 2880 rows/s, and 186 rows/s were planned for";
        assert_eq!(text, said);
    }
}
