//! This machine: file descriptors, idle cores, the programs of Packhorse with libtorch, and NVIDIA's driver with MPS.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::{Output, Stdio},
    time::Duration,
};

use packhorse_service::Libtorch;
use packhorse_terminal::context::data_home;
use tokio::{process::Command, time::timeout};

use super::check::Check;

const DESCRIPTORS: &str = "descriptors";
const IDLE_CORES: &str = "idle cores";
const PROGRAMS: &str = "programs";
const LIBTORCH: &str = "libtorch";
const DRIVER: &str = "driver";
const MPS: &str = "MPS";

/// The file descriptors that the gateway's default of 8192 connections of each listener needs, with those of links, store and files.
const ENOUGH_DESCRIPTORS: u64 = 20_000;
/// The fewest file descriptors with which the gateway can be expected to serve at all.
const FEW_DESCRIPTORS: u64 = 1024;
/// The longest time in which a program says its version. libtorch is large, and may be read from a slow disk.
const VERSION_LIMIT: Duration = Duration::from_secs(30);
/// NVIDIA's number among the makers of PCI devices.
const NVIDIA: &str = "0x10de";

/// The places where a machine says what it is.
pub(super) struct Machine {
    proc: PathBuf,
    dev: PathBuf,
    sys: PathBuf,
    /// The folders in which programs are found by name.
    search_path: Vec<PathBuf>,
    /// The folder of the programs of Packhorse.
    programs: PathBuf,
    /// The libtorch that `packhorse setup` has installed, which agents take.
    libtorch: Option<Libtorch>,
}

impl Machine {
    /// Returns this machine.
    pub(super) fn this() -> Self {
        let search_path = env::var_os("PATH").unwrap_or_default();
        let program = env::current_exe().unwrap_or_default();
        Self {
            proc: "/proc".into(),
            dev: "/dev".into(),
            sys: "/sys".into(),
            search_path: env::split_paths(&search_path).collect(),
            programs: program.parent().unwrap_or(Path::new("")).to_owned(),
            libtorch: data_home().as_deref().and_then(Libtorch::installed),
        }
    }

    /// Examines the limit of file descriptors. The gateway raises the soft one to the hard one by itself.
    pub(super) fn descriptors(&self) -> Check {
        let limits = fs::read_to_string(self.proc.join("self/limits")).unwrap_or_default();
        let Some(hard) = hard_limit(&limits) else {
            return Check::skipped(DESCRIPTORS, "this system does not say its limits");
        };
        let text = format!("the hard limit is {hard} open files");
        let cure = "LimitNOFILE=65536 in the unit of the gateway, or before it: sudo prlimit --nofile=65536 --pid $$";
        if hard < FEW_DESCRIPTORS {
            Check::problem(DESCRIPTORS, text, cure)
        } else if hard < ENOUGH_DESCRIPTORS {
            let text = format!("{text}: the gateway lowers --max-connections to what is left");
            Check::warning(DESCRIPTORS, text, cure)
        } else {
            Check::ok(DESCRIPTORS, text)
        }
    }

    /// Examines what the cores of a virtual machine do while they are idle. One that halts at once gives its time to the host, and comes back
    /// late and with cold caches: at a single client that is half of a small request's time (`docs/benchmarks/data-plane.md`).
    pub(super) fn idle_cores(&self) -> Check {
        let read = |name| fs::read_to_string(self.sys.join(name)).unwrap_or_default();
        let governor = read("devices/system/cpu/cpuidle/current_governor_ro");
        if governor.trim() != "haltpoll" {
            return Check::skipped(IDLE_CORES, "their idling is not that of a virtual machine");
        }
        let limit = read("module/haltpoll/parameters/guest_halt_poll_ns");
        match limit.trim().parse::<u64>() {
            Ok(0) => Check::warning(
                IDLE_CORES,
                "an idle core of this virtual machine halts at once, which delays every request at low load, unless the host polls for it",
                "packhorse-gateway --wake-latency-us 0, or: echo 200000 | sudo tee /sys/module/haltpoll/parameters/guest_halt_poll_ns",
            ),
            Ok(limit) => {
                let text = format!("they poll for up to {} µs before they halt", limit / 1000);
                Check::ok(IDLE_CORES, text)
            }
            Err(_) => Check::skipped(IDLE_CORES, "this system does not say how long they poll"),
        }
    }

    /// Examines the programs beside this one: each runs, and is of this version. A worker that does not run misses libtorch.
    pub(super) async fn programs(&self) -> Vec<Check> {
        let mut checks = Vec::new();
        for name in ["packhorse-gateway", "packhorse-agent", "packhorse-worker"] {
            let program = self.programs.join(name);
            if !program.is_file() {
                let text = format!("there is no {name} beside this program");
                checks.push(Check::skipped(PROGRAMS, text));
                continue;
            }
            let mut command = Command::new(&program);
            if let (LIBTORCH, Some(libtorch)) = (part_of(name), &self.libtorch) {
                command.env("LD_LIBRARY_PATH", libtorch.libraries());
            }
            let run = command
                .arg("--version")
                .stdin(Stdio::null())
                .kill_on_drop(true)
                .output();
            checks.push(match timeout(VERSION_LIMIT, run).await {
                Ok(Ok(output)) => version_check(name, &output),
                Ok(Err(e)) => not_runnable(name, &e.to_string()),
                Err(_) => not_runnable(name, "it did not say its version in time"),
            });
        }
        checks
    }

    /// Examines NVIDIA's driver and MPS.
    pub(super) fn gpus(&self) -> Vec<Check> {
        let gpus = entries(&self.sys.join("bus/pci/devices"))
            .filter(|device| is_nvidia_gpu(device))
            .count();
        let nodes = entries(&self.dev).filter(|path| is_gpu_node(path)).count();
        if gpus == 0 && nodes == 0 {
            let none = "there is no NVIDIA GPU in this machine";
            return vec![Check::skipped(DRIVER, none), Check::skipped(MPS, none)];
        }
        let Ok(version) = fs::read_to_string(self.proc.join("driver/nvidia/version")) else {
            let text = format!("{gpus} NVIDIA GPUs without a driver");
            let cure = "install NVIDIA's driver for this kernel, then: nvidia-smi -L";
            return vec![
                Check::problem(DRIVER, text, cure),
                Check::skipped(MPS, "there is no driver"),
            ];
        };
        let version = version.lines().next().unwrap_or_default();
        let version = version.trim_start_matches("NVRM version:").trim();
        let driver = if nodes == 0 {
            let text = format!("the driver is there, and its devices are not: {version}");
            Check::problem(
                DRIVER,
                text,
                "sudo nvidia-modprobe -u -c=0, or for a container: --gpus all",
            )
        } else {
            Check::ok(DRIVER, format!("{nodes} GPUs, {version}"))
        };
        vec![driver, self.mps()]
    }

    fn mps(&self) -> Check {
        let name = "nvidia-cuda-mps-control";
        match self
            .search_path
            .iter()
            .map(|folder| folder.join(name))
            .find(|path| path.is_file())
        {
            Some(path) => Check::ok(MPS, format!("{} is there for the agent", path.display())),
            None => Check::warning(
                MPS,
                format!(
                    "there is no {name} in PATH: replicas of a GPU take turns, and compute shares have no effect"
                ),
                "install the part of the driver that has it (nvidia-compute-utils), or add its folder to the agent's PATH",
            ),
        }
    }
}

/// Returns the hard limit of open files in the text of `/proc/self/limits`.
fn hard_limit(limits: &str) -> Option<u64> {
    let line = limits
        .lines()
        .find(|line| line.starts_with("Max open files"))?;
    match line.split_whitespace().nth(4)? {
        "unlimited" => Some(u64::MAX),
        number => number.parse().ok(),
    }
}

fn version_check(name: &str, output: &Output) -> Check {
    if !output.status.success() {
        let text = String::from_utf8_lossy(&output.stderr);
        return not_runnable(
            name,
            text.lines().next().unwrap_or("it fails without a word"),
        );
    }
    let said = String::from_utf8_lossy(&output.stdout);
    let version = said.split_whitespace().last().unwrap_or_default();
    let part = part_of(name);
    if version == env!("CARGO_PKG_VERSION") {
        Check::ok(part, format!("{name} {version} runs"))
    } else {
        let text = format!(
            "{name} is {version}, this program is {}",
            env!("CARGO_PKG_VERSION")
        );
        Check::warning(part, text, "install all programs of one version")
    }
}

fn not_runnable(name: &str, reason: &str) -> Check {
    let text = format!("{name} does not run: {reason}");
    if part_of(name) == LIBTORCH {
        let cure = "packhorse setup, or --libtorch FOLDER for the agent; in a source checkout: cargo xtask setup";
        return Check::problem(LIBTORCH, text, cure);
    }
    Check::problem(
        PROGRAMS,
        text,
        "install all programs of one version for this system",
    )
}

/// Returns the part that a program stands for: only the worker links libtorch.
fn part_of(program: &str) -> &'static str {
    if program == "packhorse-worker" {
        LIBTORCH
    } else {
        PROGRAMS
    }
}

fn entries(folder: &Path) -> impl Iterator<Item = PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.map(|entry| entry.path())
}

/// Returns true for the PCI device of a GPU: a display controller (class 03) by NVIDIA.
fn is_nvidia_gpu(device: &Path) -> bool {
    let read = |name| fs::read_to_string(device.join(name)).unwrap_or_default();
    read("vendor").trim() == NVIDIA && read("class").starts_with("0x03")
}

/// Returns true for `/dev/nvidia0`, `/dev/nvidia1` and so on.
fn is_gpu_node(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str());
    let number = name.and_then(|name| name.strip_prefix("nvidia"));
    number.is_some_and(|number| !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use tempfile::TempDir;

    use super::*;
    use crate::commands::doctor::check::Verdict;

    /// A machine whose files are in a folder.
    fn machine(folder: &TempDir) -> Machine {
        let path = |name| folder.path().join(name);
        Machine {
            proc: path("proc"),
            dev: path("dev"),
            sys: path("sys"),
            search_path: vec![path("bin")],
            programs: path("programs"),
            libtorch: None,
        }
    }

    fn write(folder: &TempDir, name: &str, content: &str) {
        let path = folder.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, content).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    #[test]
    fn descriptors_are_judged_by_the_hard_limit() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(machine(&folder).descriptors().verdict, Verdict::Skipped);
        for (hard, verdict) in [
            ("524288", Verdict::Ok),
            ("unlimited", Verdict::Ok),
            ("4096", Verdict::Warning),
            ("256", Verdict::Problem),
        ] {
            let line = format!(
                "Max open files            256                  {hard}               files\n"
            );
            write(
                &folder,
                "proc/self/limits",
                &format!("Limit  Soft Limit\n{line}"),
            );
            assert_eq!(machine(&folder).descriptors().verdict, verdict, "{hard}");
        }
    }

    #[test]
    fn idle_cores_of_a_virtual_machine_poll() {
        let folder = tempfile::tempdir().unwrap();
        let verdict = || machine(&folder).idle_cores().verdict;
        let governor = "sys/devices/system/cpu/cpuidle/current_governor_ro";
        let limit = "sys/module/haltpoll/parameters/guest_halt_poll_ns";
        assert_eq!(verdict(), Verdict::Skipped);
        write(&folder, governor, "menu\n");
        assert_eq!(verdict(), Verdict::Skipped);
        write(&folder, governor, "haltpoll\n");
        assert_eq!(verdict(), Verdict::Skipped);
        write(&folder, limit, "0\n");
        assert_eq!(verdict(), Verdict::Warning);
        write(&folder, limit, "200000\n");
        assert_eq!(verdict(), Verdict::Ok);
    }

    #[tokio::test]
    async fn programs_run_and_are_of_one_version() {
        let folder = tempfile::tempdir().unwrap();
        let skipped = machine(&folder).programs().await;
        assert!(
            skipped
                .iter()
                .all(|check| check.verdict == Verdict::Skipped),
            "{skipped:?}"
        );
        let version = env!("CARGO_PKG_VERSION");
        let says = |text: &str| format!("#!/bin/sh\n{text}\n");
        write(
            &folder,
            "programs/packhorse-gateway",
            &says(&format!("echo packhorse-gateway {version}")),
        );
        write(
            &folder,
            "programs/packhorse-agent",
            &says("echo packhorse-agent 0.0.1"),
        );
        let missing = "echo 'libtorch.so: cannot open shared object file' >&2; exit 127";
        write(&folder, "programs/packhorse-worker", &says(missing));
        let found = machine(&folder).programs().await;
        let told: Vec<_> = found
            .iter()
            .map(|check| (check.part, check.verdict))
            .collect();
        assert_eq!(
            told,
            [
                (PROGRAMS, Verdict::Ok),
                (PROGRAMS, Verdict::Warning),
                (LIBTORCH, Verdict::Problem)
            ]
        );
        assert!(
            found[2].text.contains("libtorch.so: cannot open"),
            "{found:?}"
        );
    }

    #[test]
    fn a_gpu_needs_its_driver_and_mps() {
        let folder = tempfile::tempdir().unwrap();
        let verdicts = || {
            let found = machine(&folder).gpus();
            (found[0].verdict, found[1].verdict)
        };
        // A graphics card of another maker, and a sound device by NVIDIA.
        write(&folder, "sys/bus/pci/devices/0/vendor", "0x1002\n");
        write(&folder, "sys/bus/pci/devices/0/class", "0x030000\n");
        write(&folder, "sys/bus/pci/devices/1/vendor", "0x10de\n");
        write(&folder, "sys/bus/pci/devices/1/class", "0x040300\n");
        assert_eq!(verdicts(), (Verdict::Skipped, Verdict::Skipped));
        write(&folder, "sys/bus/pci/devices/2/vendor", "0x10de\n");
        write(&folder, "sys/bus/pci/devices/2/class", "0x030200\n");
        assert_eq!(verdicts(), (Verdict::Problem, Verdict::Skipped));
        write(
            &folder,
            "proc/driver/nvidia/version",
            "NVRM version: NVIDIA 580.1\nGCC\n",
        );
        write(&folder, "dev/nvidiactl", "");
        assert_eq!(verdicts(), (Verdict::Problem, Verdict::Warning));
        write(&folder, "dev/nvidia0", "");
        assert_eq!(verdicts(), (Verdict::Ok, Verdict::Warning));
        write(&folder, "bin/nvidia-cuda-mps-control", "");
        assert_eq!(verdicts(), (Verdict::Ok, Verdict::Ok));
        assert_eq!(machine(&folder).gpus()[0].text, "1 GPUs, NVIDIA 580.1");
    }
}
