//! When a compute share can pay.
//!
//! A replica that uses `u` of a device and may use `s < u` takes `(u / s)^mps_exponent` times as long: above an exponent of 1 it takes more of the
//! device's time than without a share, and a device carries less. A share pays by *when* it leaves room: a neighbour whose deadline is too short to
//! compute beside `u` may compute beside `s`, and whoever has time has it. So a share is worth trying only where it binds, and where the replica is in
//! somebody's way: all that use the device want more than there is, or one was seen to be sensitive to this one.

use packhorse_cluster::ComputeShare;

use crate::estimate::Outlook;

/// What is tried, in percent.
const SHARES: [f64; 4] = [20.0, 40.0, 60.0, 80.0];

/// The shares that may pay for a replica in the place of the one at `place`, or beside all, of a device whose shares are one device at most.
pub(super) fn paying(
    here: &Outlook<'_, '_>,
    device: usize,
    model: usize,
    batch: u32,
    place: Option<usize>,
) -> impl Iterator<Item = ComputeShare> + use<> {
    let (mut used, mut given, mut sensitive) = (0.0, 0.0, false);
    for other in here.range(device).filter(|other| Some(*other) != place) {
        let slot = &here.slots()[other];
        used += slot.full_utilization;
        given += slot.share.map_or(0.0, ComputeShare::get);
        sensitive |= here.world.sensitivity(device, slot.model, model) > 0.0;
    }
    let service = here.world.service(model, device);
    let own = service.map_or(0.0, |service| service.utilization(f64::from(batch), None));
    let in_the_way = used > 0.0 && (used + own > 100.0 || sensitive);
    let binding = SHARES.into_iter().filter(move |share| *share < own);
    binding
        .filter(move |share| in_the_way && given + share <= 100.0)
        .map(|share| ComputeShare::new(share).expect("a percentage"))
}
