//! The batches of the workers of a simulated device, each of which is a process of its own. A worker writes its batches to a file in the
//! device's folder as it begins them, and reads those of its neighbours. The files end with their workers: a worker holds a lock
//! on its file, and a file without one is removed by the next worker that starts.

use std::{
    collections::BTreeMap,
    ffi::OsString,
    fs::{self, File},
    io,
    os::unix::fs::FileExt as _,
    path::{Path, PathBuf},
    process,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::{Duration, SystemTime},
};

use packhorse_cluster::{ComputeShare, Percent, Time};
use packhorse_contention::ComputeDemand;

/// The number of batches that a file keeps.
const KEPT: u64 = 256;
/// The 64-bit words of a batch: number, begin, time alone on the device, utilisation, compute share, and the sum of these.
const WORDS: usize = 6;
const BATCH_BYTES: u64 = 8 * WORDS as u64;
/// The number of batches stands before them.
const COUNT_BYTES: u64 = 8;

/// The number of files of this process, which has several where it runs several programs.
static JOINED: AtomicU64 = AtomicU64::new(0);

/// A batch that a worker has begun.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct BegunBatch {
    /// The begin, on the monotonic clock that all processes of the host share.
    pub(super) begin: Time,
    /// The time that it takes alone on the whole device.
    pub(super) solo_time: Duration,
    pub(super) demand: ComputeDemand,
}

/// The own file, and those of the neighbours.
#[derive(Debug)]
pub(super) struct Neighbours {
    folder: PathBuf,
    own: File,
    own_name: OsString,
    begun: u64,
    /// The neighbours' files, with the number of batches that were read.
    others: BTreeMap<OsString, (File, u64)>,
    /// The time at which the folder was changed when it was last read.
    changed: Option<SystemTime>,
}

impl Neighbours {
    /// Joins the workers of the device whose folder this is.
    pub(super) fn join(folder: &Path) -> io::Result<Self> {
        fs::create_dir_all(folder)?;
        let name = format!("{}-{}", process::id(), JOINED.fetch_add(1, Relaxed));
        let own_name = OsString::from(format!("{name}.batches"));
        // Nobody finds the file before it is locked.
        let hidden = folder.join(format!("{name}.new"));
        let own = File::options()
            .create(true)
            .truncate(true)
            .read(true)
            .write(true)
            .open(&hidden)?;
        own.lock()?;
        own.write_all_at(&0_u64.to_le_bytes(), 0)?;
        fs::rename(hidden, folder.join(&own_name))?;
        Ok(Self {
            folder: folder.to_owned(),
            own,
            own_name,
            begun: 0,
            others: BTreeMap::new(),
            changed: None,
        })
    }

    /// Tells the neighbours of a batch.
    pub(super) fn begin(&mut self, batch: BegunBatch) -> io::Result<()> {
        let bytes = encode(self.begun, batch);
        let place = COUNT_BYTES + self.begun % KEPT * BATCH_BYTES;
        self.own.write_all_at(&bytes, place)?;
        self.begun += 1;
        self.own.write_all_at(&self.begun.to_le_bytes(), 0)
    }

    /// Returns the batches that neighbours have begun since the last call, with the name of each neighbour.
    pub(super) fn news(&mut self) -> io::Result<Vec<(OsString, BegunBatch)>> {
        self.find()?;
        let mut news = Vec::new();
        for (name, (file, read)) in &mut self.others {
            let count = read_count(file)?;
            for number in (*read).max(count.saturating_sub(KEPT))..count {
                let mut bytes = [0; BATCH_BYTES as usize];
                file.read_exact_at(&mut bytes, COUNT_BYTES + number % KEPT * BATCH_BYTES)?;
                // A batch that is being overwritten is over.
                if let Some(batch) = decode(number, &bytes) {
                    news.push((name.clone(), batch));
                }
            }
            *read = count;
        }
        Ok(news)
    }

    /// Finds the neighbours, if any has come or gone.
    fn find(&mut self) -> io::Result<()> {
        let changed = fs::metadata(&self.folder)?.modified()?;
        if self.changed == Some(changed) {
            return Ok(());
        }
        self.changed = Some(changed);
        let mut others = BTreeMap::new();
        for entry in fs::read_dir(&self.folder)? {
            let entry = entry?;
            let name = entry.file_name();
            if name == self.own_name || entry.path().extension().is_none_or(|e| e != "batches") {
                continue;
            }
            let Ok(file) = File::open(entry.path()) else {
                continue;
            };
            if file.try_lock_shared().is_ok() {
                // Its worker has ended.
                let _ = fs::remove_file(entry.path());
                continue;
            }
            let known = self.others.remove(&name);
            others.insert(name, known.unwrap_or((file, 0)));
        }
        self.others = others;
        Ok(())
    }
}

fn read_count(file: &File) -> io::Result<u64> {
    let mut bytes = [0; COUNT_BYTES as usize];
    file.read_exact_at(&mut bytes, 0)?;
    Ok(u64::from_le_bytes(bytes))
}

fn encode(number: u64, batch: BegunBatch) -> [u8; BATCH_BYTES as usize] {
    let nanos = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    let share = batch
        .demand
        .compute_share
        .map_or(f64::NAN, ComputeShare::get);
    let values = [
        number,
        nanos(batch.begin.saturating_since(Time::ZERO)),
        nanos(batch.solo_time),
        batch.demand.sm_utilization.get().to_bits(),
        share.to_bits(),
    ];
    let sum = values
        .iter()
        .fold(0, |sum: u64, value| sum.wrapping_add(*value));
    let mut bytes = [0; BATCH_BYTES as usize];
    for (word, value) in bytes.chunks_exact_mut(8).zip(values.iter().chain([&sum])) {
        word.copy_from_slice(&value.to_le_bytes());
    }
    bytes
}

fn decode(number: u64, bytes: &[u8; BATCH_BYTES as usize]) -> Option<BegunBatch> {
    let mut words = [0; WORDS];
    for (word, value) in words.iter_mut().zip(bytes.as_chunks::<8>().0) {
        *word = u64::from_le_bytes(*value);
    }
    let [read, begin, solo, utilization, share, sum] = words;
    let values = [read, begin, solo, utilization, share];
    let expected = values
        .iter()
        .fold(0, |sum: u64, value| sum.wrapping_add(*value));
    let share = f64::from_bits(share);
    (read == number && sum == expected).then_some(())?;
    Some(BegunBatch {
        begin: Time::ZERO + Duration::from_nanos(begin),
        solo_time: Duration::from_nanos(solo),
        demand: ComputeDemand {
            sm_utilization: Percent::new(f64::from_bits(utilization)).ok()?,
            compute_share: if share.is_nan() {
                None
            } else {
                Some(ComputeShare::new(share).ok()?)
            },
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch(millis: u64, share: Option<f64>) -> BegunBatch {
        BegunBatch {
            begin: Time::ZERO + Duration::from_millis(millis),
            solo_time: Duration::from_micros(1234),
            demand: ComputeDemand {
                sm_utilization: Percent::new(42.5).unwrap(),
                compute_share: share.map(|share| ComputeShare::new(share).unwrap()),
            },
        }
    }

    #[test]
    fn a_batch_is_read_as_it_was_written_and_a_torn_one_is_not_read() {
        for share in [None, Some(25.0)] {
            let mut bytes = encode(7, batch(3, share));
            assert_eq!(decode(7, &bytes), Some(batch(3, share)));
            assert_eq!(decode(8, &bytes), None);
            bytes[17] ^= 1;
            assert_eq!(decode(7, &bytes), None);
        }
    }

    #[test]
    fn a_neighbour_is_found_and_its_batches_are_read_once_and_the_file_of_an_ended_one_is_removed()
    {
        let folder = tempfile::tempdir().unwrap();
        let mut own = Neighbours::join(folder.path()).unwrap();
        // Within this process the name must differ.
        let name = folder.path().join("1.batches");
        let mut other = Neighbours::join(folder.path()).unwrap();
        fs::rename(folder.path().join(&other.own_name), &name).unwrap();
        own.own_name = "none".into();
        for number in 0..KEPT + 10 {
            other.begin(batch(number, None)).unwrap();
        }
        let news = own.news().unwrap();
        assert_eq!(news.len() as u64, KEPT);
        assert_eq!(news[0].1, batch(10, None));
        assert_eq!(own.news().unwrap(), []);
        other.begin(batch(1, Some(50.0))).unwrap();
        assert_eq!(
            own.news().unwrap(),
            [("1.batches".into(), batch(1, Some(50.0)))]
        );
        drop(other);
        // The folder changes.
        fs::write(folder.path().join("x"), "").unwrap();
        own.changed = None;
        assert_eq!(own.news().unwrap(), []);
        assert!(!name.exists());
    }
}
