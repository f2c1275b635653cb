//! The memory of this process, from `/proc/self/status`.

use std::fs;

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
