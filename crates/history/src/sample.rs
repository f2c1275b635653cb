//! The knowledge of a model or a device in a time.

use crate::{
    bytes::{Reader, put},
    latencies::Latencies,
};

/// The knowledge of a model, or of all, in a time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ModelSample {
    /// The requests that arrived.
    pub offered: u64,
    /// The requests that were answered within the SLO.
    pub in_time: u64,
    /// The requests that were answered late, or expired in the queue.
    pub late: u64,
    /// The requests that were refused on arrival.
    pub refused: u64,
    /// The requests that failed, or were lost with their worker.
    pub failed: u64,
    /// The latencies of the answered requests.
    pub latencies: Latencies,
}

/// The knowledge of a device in a time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceSample {
    /// The compute time of the batches that its workers answered, in milliseconds. Batches that ran beside each other count each.
    pub busy_ms: u64,
    /// The time for which its node read the utilisation, in milliseconds; zero where it cannot be read.
    pub read_ms: u64,
    /// The part of that time in which it computed, in milliseconds.
    pub used_ms: u64,
    /// The most memory that its workers reported, in KiB.
    pub memory_kib: u64,
}

/// The knowledge of a time, of either kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sample {
    /// Of a model, or of all.
    Model(ModelSample),
    /// Of a device.
    Device(DeviceSample),
}

impl ModelSample {
    /// Returns the number of requests that missed their SLO.
    pub fn missed(&self) -> u64 {
        let sum = self.late.saturating_add(self.refused);
        sum.saturating_add(self.failed)
    }

    /// Adds another time, or another model.
    pub fn merge(&mut self, other: &Self) {
        let pairs = [
            (&mut self.offered, other.offered),
            (&mut self.in_time, other.in_time),
            (&mut self.late, other.late),
            (&mut self.refused, other.refused),
            (&mut self.failed, other.failed),
        ];
        for (sum, more) in pairs {
            *sum = sum.saturating_add(more);
        }
        self.latencies.merge(&other.latencies);
    }
}

impl DeviceSample {
    /// Adds another time. The memory is the most of both.
    pub fn merge(&mut self, other: &Self) {
        self.busy_ms = self.busy_ms.saturating_add(other.busy_ms);
        self.read_ms = self.read_ms.saturating_add(other.read_ms);
        self.used_ms = self.used_ms.saturating_add(other.used_ms);
        self.memory_kib = self.memory_kib.max(other.memory_kib);
    }
}

impl Sample {
    /// Adds another one of the same kind. One of another kind changes nothing.
    pub fn merge(&mut self, other: &Self) {
        match (self, other) {
            (Self::Model(sum), Self::Model(more)) => sum.merge(more),
            (Self::Device(sum), Self::Device(more)) => sum.merge(more),
            _ => {}
        }
    }

    /// Writes it: nothing where all is zero.
    pub(crate) fn write(&self, bytes: &mut Vec<u8>) {
        let (numbers, latencies) = match self {
            Self::Model(one) => (
                vec![one.offered, one.in_time, one.late, one.refused, one.failed],
                Some(&one.latencies),
            ),
            Self::Device(one) => (
                vec![one.busy_ms, one.read_ms, one.used_ms, one.memory_kib],
                None,
            ),
        };
        let latencies = latencies.filter(|latencies| latencies.total() > 0);
        let mut used = numbers.len();
        while latencies.is_none() && used > 0 && numbers[used - 1] == 0 {
            used -= 1;
        }
        for number in &numbers[..used] {
            put(bytes, *number);
        }
        if let Some(latencies) = latencies {
            latencies.write(bytes);
        }
    }

    /// Reads what is left, of a device or of a model.
    pub(crate) fn read(reader: &mut Reader<'_>, is_device: bool) -> Option<Self> {
        let mut number = || reader.number_or_zero();
        if is_device {
            return Some(Self::Device(DeviceSample {
                busy_ms: number()?,
                read_ms: number()?,
                used_ms: number()?,
                memory_kib: number()?,
            }));
        }
        Some(Self::Model(ModelSample {
            offered: number()?,
            in_time: number()?,
            late: number()?,
            refused: number()?,
            failed: number()?,
            latencies: Latencies::read(reader)?,
        }))
    }
}
