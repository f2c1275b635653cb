//! The links from the gateway to the devices.

use std::time::Duration;

use packhorse_cluster::Time;

use crate::{Links, SimulationSettings};

/// The links to all devices, one each.
#[derive(Debug)]
pub(crate) struct DeviceLinks {
    links: Links,
    router_overhead: Duration,
    base: Duration,
    bytes_per_second: f64,
    /// The time at which each device's link has transmitted what was handed to it.
    free_at: Vec<Time>,
}

impl DeviceLinks {
    pub(crate) fn new(settings: &SimulationSettings, devices: usize) -> Self {
        Self {
            links: settings.links,
            router_overhead: settings.router_overhead,
            base: settings.network.base,
            bytes_per_second: settings.network.bytes_per_second,
            free_at: vec![Time::ZERO; devices],
        }
    }

    /// Returns the time at which a batch of so many bytes, sent now, is at its device.
    pub(crate) fn send(&mut self, now: Time, device: usize, bytes: f64) -> Time {
        let handed_over = now + self.router_overhead;
        let begin = match self.links {
            Links::Instant => handed_over,
            Links::Queue => handed_over.max(self.free_at[device]),
        };
        let transmitted = begin + Duration::from_secs_f64(bytes / self.bytes_per_second);
        self.free_at[device] = transmitted;
        transmitted + self.base
    }
}
