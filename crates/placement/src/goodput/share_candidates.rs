//! The compute shares that can improve a placement.
//!
//! A replica that uses `u` of a device and may use `s < u` takes `(u / s)^mps_exponent` times as long: above an exponent of 1 it takes more of the
//! device's time than without a share, and the device carries less. A share can still gain: a neighbour whose deadline is too short to
//! compute beside `u` may be in time beside `s`, and the replica with the longer deadline has the time. So a share is tried only if
//! it is below the replica's utilisation, and if the replica slows a neighbour: the replicas together use more than the device, or a neighbour
//! is sensitive to this one.

use packhorse_cluster::ComputeShare;

use crate::estimate::PlacementEstimate;

/// The compute shares that are tried, in percent.
const SHARES: [f64; 4] = [20.0, 40.0, 60.0, 80.0];

/// Returns the shares to try for a replica: in the place of the one at `replaced`, or beside all. The shares of a device are 100 % at
/// most.
pub(super) fn share_candidates(
    current: &PlacementEstimate<'_, '_>,
    device: usize,
    model: usize,
    batch: u32,
    replaced: Option<usize>,
) -> impl Iterator<Item = ComputeShare> + use<> {
    let (mut used, mut reserved, mut is_sensitive) = (0.0, 0.0, false);
    for other in current
        .range(device)
        .filter(|other| Some(*other) != replaced)
    {
        let neighbour = &current.replicas()[other];
        used += neighbour.backlog_utilization;
        reserved += neighbour.share.map_or(0.0, ComputeShare::get);
        let sensitivity = current.inputs.sensitivity(device, neighbour.model, model);
        is_sensitive |= sensitivity.unsaturated > 0.0 || sensitivity.saturated > 0.0;
    }
    let costs = current.inputs.batch_costs(model, device);
    let own = costs.map_or(0.0, |costs| costs.utilization(f64::from(batch), None));
    let slows_neighbours = used > 0.0 && (used + own > 100.0 || is_sensitive);
    let below_own = SHARES.into_iter().filter(move |share| *share < own);
    below_own
        .filter(move |share| slows_neighbours && reserved + share <= 100.0)
        .map(|share| ComputeShare::new(share).expect("a percentage"))
}
