//! The CPU as one device.

use std::{fs, path::Path, thread};

use packhorse_cluster::{ByteCount, DeviceKind};

use super::{Backend, Device};

/// Returns the CPU, with all memory that this process may use, and with this many of its threads; `None` is all that this process may
/// use.
pub(super) fn discover(threads: Option<u32>) -> Device {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let description = model_name(&read("/proc/cpuinfo"));
    let total = mem_total(&read("/proc/meminfo")).unwrap_or(u64::MAX);
    let memory = memory_limit(&read("/proc/self/cgroup")).map_or(total, |limit| limit.min(total));
    Device {
        name: "cpu0".to_owned(),
        kind: DeviceKind::from_cpu_model_name(&description),
        memory: ByteCount::new(memory),
        multiprocessors: threads.or_else(|| {
            let all = thread::available_parallelism().ok()?;
            u32::try_from(all.get()).ok()
        }),
        description,
        backend: Backend::Cpu,
    }
}

/// Returns the first `model name` of /proc/cpuinfo; empty on architectures without one.
fn model_name(cpuinfo: &str) -> String {
    cpuinfo
        .lines()
        .filter_map(|line| line.split_once(':'))
        .find(|(key, _)| key.trim() == "model name")
        .map(|(_, name)| name.trim().to_owned())
        .unwrap_or_default()
}

/// Returns `MemTotal` of /proc/meminfo, in bytes.
fn mem_total(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|l| l.strip_prefix("MemTotal:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

/// Returns the smallest memory limit of this process's control group (version 2) and its ancestors, in bytes.
fn memory_limit(cgroup: &str) -> Option<u64> {
    let own = cgroup.lines().find_map(|line| line.strip_prefix("0::/"))?;
    Path::new(own)
        .ancestors()
        .map(|group| Path::new("/sys/fs/cgroup").join(group).join("memory.max"))
        .filter_map(|file| fs::read_to_string(file).ok()?.trim().parse().ok())
        .min()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_files_of_the_kernel_are_parsed() {
        let cpuinfo =
            "processor\t: 0\nmodel name\t: Intel(R) Xeon(R) CPU @ 2.70GHz\n\nmodel name\t: x\n";
        assert_eq!(model_name(cpuinfo), "Intel(R) Xeon(R) CPU @ 2.70GHz");
        assert_eq!(model_name("processor\t: 0\nBogoMIPS\t: 50.00\n"), "");
        assert_eq!(
            mem_total("MemTotal:       16 kB\nMemFree: 1 kB\n"),
            Some(16 << 10)
        );
        assert_eq!(mem_total(""), None);
    }
}
