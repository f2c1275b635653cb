//! The memory of this process, from `/proc/self/status`.

use std::{
    fs::{self, File},
    io::Write as _,
    sync::OnceLock,
};

use packhorse_cluster::ByteCount;

/// Returns the resident memory that processes with the same program and libraries share: all that is not anonymous.
#[cfg(feature = "torch")]
pub(crate) fn shared() -> Option<ByteCount> {
    shared_of(&status()?)
}

#[cfg(any(test, feature = "torch"))]
fn shared_of(status: &str) -> Option<ByteCount> {
    Some(field(status, "VmRSS:")?.saturating_sub(field(status, "RssAnon:")?))
}

/// Returns the resident memory.
pub(crate) fn resident() -> Option<ByteCount> {
    field(&status()?, "VmRSS:")
}

/// Returns the anonymous memory, which no file has.
pub(crate) fn anonymous() -> Option<ByteCount> {
    field(&status()?, "RssAnon:")
}

/// Returns the largest resident memory so far.
pub(crate) fn peak_resident() -> Option<ByteCount> {
    field(&status()?, "VmHWM:")
}

/// The file by which the kernel forgets the peak.
static CLEAR_REFS: OnceLock<File> = OnceLock::new();

/// Prepares [`begin_new_peak`]. Must be called before the process hides its memory and is confined, after which the file cannot be opened.
pub(crate) fn prepare_new_peaks() {
    match File::options().write(true).open("/proc/self/clear_refs") {
        Ok(file) => drop(CLEAR_REFS.set(file)),
        Err(error) => {
            tracing::warn!(%error, "the memory of a program may be measured as that of one before it");
        }
    }
}

/// Has [`peak_resident`] be the largest from now on, if that was prepared.
pub(crate) fn begin_new_peak() {
    /// The command to forget the peak.
    const FORGET_PEAK: &[u8] = b"5";
    if let Some(mut file) = CLEAR_REFS.get()
        && let Err(error) = file.write_all(FORGET_PEAK)
    {
        tracing::warn!(%error, "the peak of the resident memory is not forgotten");
    }
}

fn status() -> Option<String> {
    fs::read_to_string("/proc/self/status").ok()
}

fn field(status: &str, name: &str) -> Option<ByteCount> {
    let value = status.lines().find_map(|line| line.strip_prefix(name))?;
    let kib: u64 = value.trim().strip_suffix("kB")?.trim_end().parse().ok()?;
    Some(ByteCount::new(kib * 1024))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_peak_is_below_that_of_memory_that_was_freed() {
        prepare_new_peaks();
        let before = peak_resident().unwrap();
        drop(std::hint::black_box(vec![1_u8; 256 << 20]));
        let large = peak_resident().unwrap();
        assert!(large.saturating_sub(before).as_u64() > 128 << 20);
        begin_new_peak();
        assert!(peak_resident().unwrap() < large);
    }

    #[test]
    fn fields_are_read_in_kib() {
        let status = "Name:\tx\nVmHWM:\t    2048 kB\nVmRSS:\t 1024 kB\n";
        assert_eq!(field(status, "VmHWM:"), Some(ByteCount::new(2 << 20)));
        assert_eq!(field(status, "VmSwap:"), None);
        let status = "VmRSS:\t 367240 kB\nRssAnon:\t 186728 kB\nRssFile:\t 180512 kB\n";
        assert_eq!(shared_of(status), Some(ByteCount::new(180_512 << 10)));
        // Both fields are from one reading, because other tests allocate memory meanwhile.

        let ours = super::status().unwrap();
        let (peak, now) = (field(&ours, "VmHWM:"), field(&ours, "VmRSS:"));
        assert!(now.is_some() && peak >= now, "{peak:?} {now:?}");
    }
}
