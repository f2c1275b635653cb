//! `/v1/history`: the last day of models and devices.

use axum::{Json, extract::State};
use packhorse_api::{
    DevicePoint, ErrorBody, HistoryMark, HistoryMarkKind, HistoryView, RequestPoint,
};
use packhorse_cluster::{DeviceId, ModelName, ModelVersion};
use packhorse_history::{
    FINE_MS, FINE_SPAN_MS, History, MINUTE_MS, Mark, MarkKind, ModelSample, Point, Sample, Series,
};
use serde::Deserialize;
use utoipa::IntoParams;

use super::{Admin, times::named_ms};
use crate::{
    api::error::{ApiError, Query},
    store::unix_ms,
};

/// The largest number of steps of an answer.
const MAX_STEPS: u64 = 2000;
/// The number of steps that an answer has at most where none are asked for.
const USUAL_STEPS: u64 = 400;
/// The steps that are chosen where none are asked for, in seconds.
const STEPS: [u64; 5] = [10, 60, 300, 900, 3600];

/// The history to return.
#[derive(Clone, Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct WhichHistory {
    /// The model's name; all models together if neither it nor a device is given.
    #[param(value_type = Option<String>)]
    model: Option<ModelName>,
    /// The version of this model; all versions together if absent.
    #[param(value_type = Option<u32>)]
    version: Option<ModelVersion>,
    /// The device, as its node and its name there: `node/device`.
    #[param(value_type = Option<String>)]
    device: Option<DeviceId>,
    /// The begin, in milliseconds since 1970; a negative number counts from now. An hour before the end if absent.
    from_ms: Option<i64>,
    /// The end, in milliseconds since 1970; a negative number counts from now. Now if absent.
    to_ms: Option<i64>,
    /// The length of a step, in seconds: a multiple of 10, at least 60 for times more than an hour ago, and so that there are at most 2000 steps. Chosen
    /// for at most 400 steps if absent.
    #[param(minimum = 10, maximum = 86_400)]
    step_s: Option<u64>,
}

/// Returns the last day of a model, of all models or of a device.
///
/// It is known in steps of ten seconds for an hour, and in minutes for a day, also from before a restart of the gateway. A step of which nothing is known is
/// a gap: it is left out. Steps begin at multiples of their length.
#[utoipa::path(
    get, path = "/v1/history", tag = "plans", security(("admin" = [])),
    params(WhichHistory),
    responses(
        (status = 200, body = HistoryView),
        (status = 404, description = "Nothing is known of such a model or device", body = ErrorBody),
        (status = "default", description = "Any other failure", body = ErrorBody),
    )
)]
pub(super) async fn show(
    State(admin): State<Admin>,
    Query(which): Query<WhichHistory>,
) -> Result<Json<HistoryView>, ApiError> {
    if which.device.is_some() && which.model.is_some() {
        return Err(ApiError::bad_request(
            "device: expected only without model".to_owned(),
        ));
    }
    if which.version.is_some() && which.model.is_none() {
        return Err(ApiError::bad_request(
            "version: expected only together with model".to_owned(),
        ));
    }
    let now = u64::try_from(unix_ms()).unwrap_or_default();
    let window = window(&which, now)?;
    let history = admin.history.clone();
    // It may look at the blocks of a day.
    let view = tokio::task::spawn_blocking(move || history.read(|all| view(all, &which, &window)));
    view.await.map_err(|e| ApiError::internal(&e))?.map(Json)
}

/// A time, and the length of its steps, in milliseconds.
#[derive(Clone, Copy, Debug)]
struct Window {
    from: u64,
    to: u64,
    step: u64,
}

fn window(which: &WhichHistory, now: u64) -> Result<Window, ApiError> {
    let at = |ms: i64| u64::try_from(named_ms(ms)).unwrap_or_default();
    let to_ms = which.to_ms.map_or(now, at);
    let from_ms = which.from_ms.map_or(to_ms.saturating_sub(FINE_SPAN_MS), at);
    if from_ms > to_ms {
        return Err(ApiError::bad_request(
            "from_ms: expected a time before to_ms",
        ));
    }
    // A window of an hour that ends now is one of the last hour.
    let is_old = from_ms + FINE_SPAN_MS + 2 * FINE_MS < now;
    let number_of = |step_s: u64| (to_ms - from_ms) / (step_s * 1000);
    let least = if is_old { MINUTE_MS / 1000 } else { 10 };
    let step_s = which.step_s.unwrap_or_else(|| {
        let mut usual = STEPS.into_iter();
        let found = usual.find(|step| *step >= least && number_of(*step) <= USUAL_STEPS);
        found.unwrap_or(86_400)
    });
    if !(10..=86_400).contains(&step_s) || !step_s.is_multiple_of(10) {
        return Err(ApiError::bad_request(
            "step_s: expected a multiple of 10 from 10 to 86400",
        ));
    }
    if step_s < least {
        return Err(ApiError::bad_request(
            "step_s: expected at least 60 for times more than an hour ago",
        ));
    }
    if number_of(step_s) > MAX_STEPS {
        return Err(ApiError::bad_request(format!(
            "step_s: expected at most {MAX_STEPS} steps from from_ms to to_ms"
        )));
    }
    Ok(Window {
        from: from_ms,
        to: to_ms,
        step: step_s * 1000,
    })
}

fn view(all: &History, which: &WhichHistory, window: &Window) -> Result<HistoryView, ApiError> {
    let is_wanted = |series: &Series| match (series, &which.model, &which.device) {
        (Series::Device(id), None, Some(device)) => id == device,
        (Series::Model(id), Some(name), _) => {
            id.name == *name && which.version.is_none_or(|version| id.version == version)
        }
        (Series::Cluster, None, None) => true,
        _ => false,
    };
    let is_named = which.model.is_some() || which.device.is_some();
    if is_named && !all.knows(is_wanted) {
        let field = if which.model.is_some() {
            "model"
        } else {
            "device"
        };
        return Err(ApiError::not_found(format!(
            "{field}: nothing of the last day is known of it"
        )));
    }
    let (from_ms, to_ms) = (window.from, window.to);
    let points = all.points(is_wanted, (from_ms, to_ms), window.step);
    let (mut requests, mut device) = (Vec::new(), Vec::new());
    for point in &points {
        match &point.sample {
            Sample::Model(sample) => requests.push(request_point(point, sample)),
            Sample::Device(sample) => {
                let covered = point.covered_ms.max(1) as f64;
                let read = sample.read_ms as f64;
                device.push(DevicePoint {
                    at_ms: point.begin_ms,
                    covered_s: covered / 1e3,
                    plan: plan(point),
                    busy: sample.busy_ms as f64 / covered,
                    utilization: (read > 0.0).then(|| sample.used_ms as f64 / read),
                    memory_bytes: sample.memory_kib * 1024,
                });
            }
        }
    }
    let marks = all.marks(from_ms, to_ms).into_iter();
    let concerns = |mark: &Mark| match (&mark.series, mark.kind) {
        // What takes requests from one version gives them to another.
        (Some(Series::Model(id)), MarkKind::Version) if which.model.is_some() => {
            which.model.as_ref() == Some(&id.name)
        }
        (Some(series), _) => !is_named || is_wanted(series),
        (None, _) => true,
    };
    Ok(HistoryView {
        from_ms,
        to_ms,
        step_s: window.step / 1000,
        known_from_ms: all.first_ms(),
        requests,
        device,
        marks: marks.filter(concerns).map(mark_view).collect(),
    })
}

fn plan(point: &Point) -> Option<u64> {
    (point.generation > 0).then_some(point.generation)
}

fn request_point(point: &Point, sample: &ModelSample) -> RequestPoint {
    let quantile = |p| Some(sample.latencies.quantile(p)?.as_secs_f64() * 1e3);
    RequestPoint {
        at_ms: point.begin_ms,
        covered_s: point.covered_ms as f64 / 1e3,
        plan: plan(point),
        offered: sample.offered,
        in_time: sample.in_time,
        missed: sample.missed(),
        late: sample.late,
        refused: sample.refused,
        failed: sample.failed,
        p50_ms: quantile(0.5),
        p99_ms: quantile(0.99),
    }
}

fn mark_view(mark: Mark) -> HistoryMark {
    let (model, device) = match mark.series {
        Some(Series::Model(id)) => (Some(id), None),
        Some(Series::Device(id)) => (None, Some(id)),
        Some(Series::Cluster) | None => (None, None),
    };
    HistoryMark {
        at_ms: mark.at_ms,
        kind: match mark.kind {
            MarkKind::Plan => HistoryMarkKind::Plan,
            MarkKind::Version => HistoryMarkKind::Version,
            MarkKind::Finding => HistoryMarkKind::Finding,
        },
        model,
        device,
        text: mark.text,
    }
}
