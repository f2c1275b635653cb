//! A simulated device in real time, shared by the processes of its workers. Each of them follows the batches of all on the same model of a
//! device that the simulator has, and sleeps until its own batch is computed there.

use std::{collections::BTreeMap, ffi::OsString, io, path::Path, time::Duration};

use packhorse_cluster::Time;
use packhorse_contention::{ComputeDemand, Interference, QueuedBatch, SharedDevice};
use rustix::{
    thread::clock_nanosleep_absolute,
    time::{ClockId, Timespec, clock_gettime},
};

use super::neighbours::{BegunBatch, Neighbours};

/// The worker's own replica on the model of the device.
const OWN: usize = 0;

/// A simulated device, as one of its workers sees it.
#[derive(Debug)]
pub(super) struct SimulatedDevice {
    neighbours: Neighbours,
    /// The model. A batch's number is true for the own one.
    model: SharedDevice<bool>,
    replicas: BTreeMap<OsString, usize>,
    /// The time up to which the batches of the neighbours are on the model.
    followed: Time,
}

impl SimulatedDevice {
    /// Joins the workers of the device whose folder this is.
    pub(super) fn join(folder: &Path) -> io::Result<Self> {
        let mut model = SharedDevice::new(Interference::default());
        assert_eq!(model.add_replica(), OWN);
        Ok(Self {
            neighbours: Neighbours::join(folder)?,
            model,
            replicas: BTreeMap::new(),
            followed: Time::ZERO,
        })
    }

    /// Computes a batch: waits for as long as it takes beside the batches of the neighbours. Returns that time.
    pub(super) fn compute(
        &mut self,
        solo_time: Duration,
        demand: ComputeDemand,
    ) -> io::Result<Duration> {
        let begin = now();
        let own = BegunBatch {
            begin,
            solo_time,
            demand,
        };
        self.neighbours.begin(own)?;
        let mut own = Some(own);
        loop {
            let is_done = self.follow(now(), own.take())?;
            if is_done {
                return Ok(now().saturating_since(begin));
            }
            // Neighbours that begin meanwhile make it later, never earlier.
            sleep_until(self.end());
        }
    }

    /// Brings the model up to a time. Returns true if the own batch is computed by then.
    fn follow(&mut self, now: Time, own: Option<BegunBatch>) -> io::Result<bool> {
        let mut new: Vec<(usize, BegunBatch)> = Vec::new();
        for (name, batch) in self.neighbours.news()? {
            let model = &mut self.model;
            let replica = self.replicas.entry(name);
            new.push((*replica.or_insert_with(|| model.add_replica()), batch));
        }
        new.extend(own.map(|batch| (OWN, batch)));
        new.sort_by_key(|(_, batch)| batch.begin);
        let mut is_done = false;
        for (replica, batch) in new {
            // What was read late begins late.
            let begin = batch.begin.max(self.followed);
            is_done |= self.run(begin);
            let queued = QueuedBatch {
                batch: replica == OWN,
                solo_time: batch.solo_time,
                demand: batch.demand,
            };
            self.model.enqueue(begin, replica, queued);
        }
        Ok(is_done | self.run(now))
    }

    /// Has the model compute until a time. Returns true if the own batch is computed by then.
    fn run(&mut self, until: Time) -> bool {
        let mut done = Vec::new();
        while let Some((at, revision)) = self.model.next_completion()
            && at <= until
        {
            self.model.complete(at, revision, &mut done);
        }
        self.followed = self.followed.max(until);
        done.iter().any(|done| done.batch)
    }

    /// Returns the time at which the own batch is computed if no neighbour begins another one.
    fn end(&self) -> Time {
        let mut model = self.model.clone();
        let mut done = Vec::new();
        while let Some((at, revision)) = model.next_completion() {
            model.complete(at, revision, &mut done);
            if done.drain(..).any(|done| done.batch) {
                return at;
            }
        }
        self.followed
    }
}

/// Returns the time on the monotonic clock, which all processes of the host share.
fn now() -> Time {
    let time = clock_gettime(ClockId::Monotonic);
    let seconds = u64::try_from(time.tv_sec).unwrap_or_default();
    let nanos = u32::try_from(time.tv_nsec).unwrap_or_default();
    Time::ZERO + Duration::new(seconds, nanos)
}

/// Sleeps until a time, however often signals wake the thread.
fn sleep_until(time: Time) {
    let since = time.saturating_since(Time::ZERO);
    let until = Timespec {
        tv_sec: i64::try_from(since.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: since.subsec_nanos().into(),
    };
    while clock_nanosleep_absolute(ClockId::Monotonic, &until) == Err(rustix::io::Errno::INTR) {}
}

#[cfg(test)]
mod tests {
    use packhorse_cluster::{ComputeShare, Percent};

    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn demand(utilization: f64, share: Option<f64>) -> ComputeDemand {
        ComputeDemand {
            sm_utilization: Percent::new(utilization).unwrap(),
            compute_share: share.map(|share| ComputeShare::new(share).unwrap()),
        }
    }

    fn at(millis: u32) -> Time {
        Time::ZERO + MS * millis
    }

    fn device() -> (tempfile::TempDir, SimulatedDevice) {
        let folder = tempfile::tempdir().unwrap();
        let device = SimulatedDevice::join(folder.path()).unwrap();
        (folder, device)
    }

    fn begun(begin: u32, solo: u32, utilization: f64) -> BegunBatch {
        BegunBatch {
            begin: at(begin),
            solo_time: MS * solo,
            demand: demand(utilization, None),
        }
    }

    /// Writes a neighbour's batch, as its process would.
    fn neighbour(device: &mut SimulatedDevice, batch: BegunBatch) {
        let replica = device.replicas.entry("1".into());
        let replica = *replica.or_insert_with(|| device.model.add_replica());
        device.run(batch.begin);
        let queued = QueuedBatch {
            batch: false,
            solo_time: batch.solo_time,
            demand: batch.demand,
        };
        device.model.enqueue(batch.begin, replica, queued);
    }

    #[test]
    fn a_batch_alone_takes_its_time_and_no_less() {
        let (_folder, mut device) = device();
        for _ in 0..3 {
            let took = device.compute(MS * 5, demand(100.0, None)).unwrap();
            assert!(took >= MS * 5, "{took:?}");
        }
    }

    #[test]
    fn a_share_binds_also_without_neighbours() {
        let (_folder, mut device) = device();
        assert!(
            !device
                .follow(
                    at(0),
                    Some(BegunBatch {
                        demand: demand(100.0, Some(50.0)),
                        ..begun(0, 10, 100.0)
                    })
                )
                .unwrap()
        );
        let rate = Interference::default()
            .rates(&[demand(100.0, Some(50.0))])
            .next();
        let expected = 0.010 / rate.unwrap();
        let end = device.end().saturating_since(Time::ZERO).as_secs_f64();
        assert!(
            (end - expected).abs() < 1e-6,
            "{end} s, expected {expected} s"
        );
        assert!(end > 0.015);
    }

    #[test]
    fn batches_of_two_workers_that_need_the_whole_device_take_twice_as_long() {
        let (_folder, mut device) = device();
        assert!(!device.follow(at(0), Some(begun(0, 10, 100.0))).unwrap());
        assert_eq!(device.end(), at(10));
        neighbour(&mut device, begun(4, 10, 100.0));
        assert_eq!(device.end(), at(16));
        assert!(!device.follow(at(15), None).unwrap());
        assert!(device.follow(at(16), None).unwrap());
        // The neighbour's has 4 ms left at 16, beside which the next one runs.
        assert!(!device.follow(at(16), Some(begun(16, 10, 100.0))).unwrap());
        assert_eq!(device.end(), at(30));
    }
}
