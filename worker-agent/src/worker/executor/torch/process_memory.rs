//! The memory of this process, from `/proc/self/status`.

use std::fs;

use packhorse_cluster::ByteCount;

/// Returns the resident memory.
pub(super) fn resident() -> Option<ByteCount> {
    field(&status()?, "VmRSS:")
}

/// Returns the largest resident memory so far.
pub(super) fn peak_resident() -> Option<ByteCount> {
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
        // Both fields are from one reading, because other tests allocate memory meanwhile.

        let ours = super::status().unwrap();
        let (peak, now) = (field(&ours, "VmHWM:"), field(&ours, "VmRSS:"));
        assert!(now.is_some() && peak >= now, "{peak:?} {now:?}");
    }
}
