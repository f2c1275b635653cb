//! The requests for previews that show what a cure would bring.

use packhorse_api::{PlanPreviewRequest, PreviewDevices, PreviewModel};
use packhorse_cluster::{DeviceKind, ModelId};

/// Returns a registered model as it is, to be changed in a preview.
pub(super) fn unchanged_model(id: &ModelId) -> PreviewModel {
    PreviewModel {
        name: id.name.clone(),
        version: Some(id.version),
        slo_ms: None,
        rate_rps: None,
        priority: None,
        profile_of: None,
    }
}

/// Returns the request for the plan with a changed model.
pub(super) fn preview_of_model(model: PreviewModel) -> PlanPreviewRequest {
    PlanPreviewRequest {
        explain: true,
        models: vec![model],
        ..PlanPreviewRequest::default()
    }
}

/// Returns the request for the plan with so many more devices of a kind, or fewer if the number is negative.
pub(super) fn preview_of_devices(kind: &DeviceKind, count: i32) -> PlanPreviewRequest {
    PlanPreviewRequest {
        explain: true,
        devices: vec![PreviewDevices {
            kind: kind.clone(),
            count,
        }],
        ..PlanPreviewRequest::default()
    }
}
