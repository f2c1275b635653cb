//! The supervisor with real processes: a script stands in for the control daemon.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use packhorse_worker_agent::handoff::{LOG_LIMIT, ProcessIdentity};
use tempfile::TempDir;
use tokio::time::{sleep, timeout};

use super::*;
use crate::process::ProcessFailure;

/// A time limit far above what any step takes, even on a busy machine.
const LIMIT: Duration = Duration::from_secs(30);
const TIMES: SupervisorTimes = SupervisorTimes {
    check: Duration::from_millis(20),
    start: Duration::from_secs(20),
    recovery: Duration::from_secs(20),
    first_pause: Duration::from_millis(20),
    longest_pause: Duration::from_millis(100),
};
const GPU: &str = "GPU-0a1b2c3d";

/// A node with one GPU and its daemon's folder.
struct Node {
    root: TempDir,
    program: PathBuf,
    times: SupervisorTimes,
    mps: Mps,
    sender: mpsc::Sender<Event>,
    events: mpsc::Receiver<Event>,
}

impl Node {
    fn new() -> Self {
        let (sender, events) = mpsc::channel(8);
        Self {
            root: tempfile::tempdir().unwrap(),
            program: Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/stand-ins/mps-control"),
            times: TIMES,
            mps: Mps::default(),
            sender,
            events,
        }
    }

    fn control(&self) -> Control {
        Control::new(&self.program, GPU, self.root.path(), &WorkerUser::default()).unwrap()
    }

    fn file(&self, name: &str) -> PathBuf {
        let [(_, pipe), _] = self.control().environment();
        PathBuf::from(pipe).join(name)
    }

    fn supervise(&mut self) {
        let control = self.control();
        self.mps.supervise(GPU, control, self.times, &self.sender);
    }

    async fn until(&self, done: impl FnMut(&GpuSharing) -> bool) -> GpuSharing {
        let mut sharing = self.mps.devices[GPU].sharing.subscribe();
        let waited = timeout(LIMIT, sharing.wait_for(done)).await;
        waited.expect("in time").unwrap().clone()
    }

    async fn serving() -> Self {
        let mut node = Self::new();
        node.supervise();
        node.until(|sharing| *sharing == GpuSharing::Mps).await;
        node
    }

    fn device(&self) -> &MpsDevice {
        self.mps.device(GPU).unwrap()
    }

    fn daemon(&self) -> ProcessIdentity {
        let pid = fs::read_to_string(self.file("daemon")).unwrap();
        ProcessIdentity::from_pid(pid.trim().parse().unwrap()).unwrap()
    }

    async fn event(&mut self) -> Event {
        let event = timeout(LIMIT, self.events.recv()).await;
        event.expect("in time").unwrap()
    }

    /// Ends all processes that this test has started, and waits until they have ended.
    async fn end(mut self) {
        let daemon = self.daemon();
        self.events.close();
        std::mem::take(&mut self.mps).quit().await;
        let gone = async {
            while daemon.is_alive() {
                sleep(Duration::from_millis(5)).await;
            }
        };
        timeout(LIMIT, gone).await.unwrap();
    }
}

fn failed(failure: &MpsFailure) -> Event {
    Event::DeviceFailed(GPU.to_owned(), failure.to_string())
}

fn recovered() -> Event {
    Event::DeviceRecovered(GPU.to_owned())
}

#[tokio::test]
async fn workers_of_a_gpu_with_a_daemon_use_it() {
    let node = Node::serving().await;
    let device = fs::read_to_string(node.file("device")).unwrap();
    assert_eq!(device.trim(), GPU, "the daemon sees this GPU only");
    let pipe = node.file("");
    let environment_for = |memory| {
        let environment = node.device().environment(memory);
        BTreeMap::<&str, OsString>::from_iter(environment)
    };
    let unlimited = environment_for(None);
    assert_eq!(Path::new(&unlimited["CUDA_MPS_PIPE_DIRECTORY"]), pipe);
    assert!(!unlimited.contains_key("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"));
    let limited = environment_for(Some(ByteCount::new(4 << 30)));
    assert_eq!(limited["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"], "0=6144M");
    let mode = std::os::unix::fs::PermissionsExt::mode(&fs::metadata(pipe).unwrap().permissions());
    assert_eq!(mode & 0o777, 0o700);
    node.end().await;
}

#[tokio::test]
async fn without_the_program_the_gpu_is_time_sliced_with_the_reason() {
    let mut node = Node::new();
    node.program = PathBuf::from("no-such-mps-control");
    node.supervise();
    let sharing = node.until(|sharing| *sharing != GpuSharing::Starting).await;
    let reason = "no-such-mps-control cannot be run: No such file or directory (os error 2)";
    let failure = MpsFailure::Control(reason.to_owned());
    assert_eq!(sharing, GpuSharing::TimeSliced(failure));
    assert!(node.mps.device(GPU).is_none());
    assert!(node.events.try_recv().is_err(), "nothing has failed");
}

#[tokio::test]
async fn a_daemon_that_refuses_to_start_is_tried_again() {
    let mut node = Node::new();
    fs::write(node.file("refuse"), "").unwrap();
    node.supervise();
    let sharing = node.until(|sharing| *sharing != GpuSharing::Starting).await;
    let failure = MpsFailure::DaemonEnded {
        failure: Some(ProcessFailure::Status(1)),
        last_line: Some("An instance of this daemon is already running".to_owned()),
    };
    assert_eq!(sharing, GpuSharing::TimeSliced(failure));
    fs::remove_file(node.file("refuse")).unwrap();
    node.until(|sharing| *sharing == GpuSharing::Mps).await;
    assert!(node.events.try_recv().is_err(), "nothing has failed");
    node.end().await;
}

#[tokio::test]
async fn a_daemon_that_never_answers_is_given_up() {
    let mut node = Node::new();
    node.times.start = Duration::from_millis(200);
    fs::write(node.file("mute"), "").unwrap();
    node.supervise();
    let sharing = node.until(|sharing| *sharing != GpuSharing::Starting).await;
    let failure = MpsFailure::DaemonSilent {
        limit: Duration::from_millis(200),
        last_line: None,
    };
    assert_eq!(sharing, GpuSharing::TimeSliced(failure));
    fs::remove_file(node.file("mute")).unwrap();
    node.until(|sharing| *sharing == GpuSharing::Mps).await;
    node.end().await;
}

#[tokio::test]
async fn a_daemon_that_dies_fails_its_device_and_is_started_again() {
    let mut node = Node::serving().await;
    let first = node.daemon();
    let pid = nix::unistd::Pid::from_raw(first.pid.cast_signed());
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL).unwrap();
    let killed = MpsFailure::DaemonEnded {
        failure: Some(ProcessFailure::Signal(9)),
        last_line: None,
    };
    assert_eq!(node.event().await, failed(&killed));
    assert_eq!(node.event().await, recovered());
    assert_ne!(node.daemon(), first);
    assert!(node.mps.device(GPU).is_some());
    node.end().await;
}

#[tokio::test]
async fn a_failed_server_fails_its_device_until_it_recovers() {
    let mut node = Node::serving().await;
    let daemon = node.daemon();
    fs::write(node.file("status"), "FAULT\n").unwrap();
    fs::write(node.file("servers"), "4711\n").unwrap();
    assert_eq!(node.event().await, failed(&MpsFailure::ServerFailed));
    fs::write(node.file("status"), "ACTIVE\n").unwrap();
    assert_eq!(node.event().await, recovered());
    assert_eq!(node.daemon(), daemon, "the daemon still runs");
    node.end().await;
}

#[tokio::test]
async fn a_server_that_stays_failed_gets_a_new_daemon() {
    let mut node = Node::new();
    node.times.recovery = Duration::from_millis(50);
    node.supervise();
    node.until(|sharing| *sharing == GpuSharing::Mps).await;
    let first = node.daemon();
    fs::write(node.file("status"), "FAULT\n").unwrap();
    fs::write(node.file("servers"), "4711\n").unwrap();
    node.event().await;
    // The device stays failed while the new daemon reports a failed server, too.
    let changed = async {
        while first.is_alive() {
            sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(LIMIT, changed).await.unwrap();
    fs::remove_file(node.file("servers")).unwrap();
    assert_eq!(node.event().await, recovered());
    node.end().await;
}

#[tokio::test]
async fn the_output_of_a_daemon_is_kept_short() {
    let node = Node::serving().await;
    let output = node.control().output();
    let line = "[Control  1478] Cmd:get_server_list\n";
    // Replaced atomically, because the supervisor reads it at any time.
    let long = node.root.path().join("long");
    fs::write(&long, line.repeat(1 + LOG_LIMIT as usize / line.len())).unwrap();
    fs::rename(&long, &output).unwrap();
    let short = async {
        while fs::metadata(&output).unwrap().len() > LOG_LIMIT / 2 {
            sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(LIMIT, short).await.unwrap();
    assert!(fs::read_to_string(&output).unwrap().ends_with(line));
    node.end().await;
}

#[tokio::test]
async fn the_next_agent_adopts_the_daemon_of_the_one_before() {
    let mut node = Node::serving().await;
    let daemon = node.daemon();
    node.mps = Mps::default();
    node.supervise();
    node.until(|sharing| *sharing == GpuSharing::Mps).await;
    assert_eq!(node.daemon(), daemon);
    assert!(node.events.try_recv().is_err(), "nothing has failed");
    node.end().await;
}

#[tokio::test]
async fn a_client_is_detached_from_every_server_before_it_is_killed() {
    let node = Node::serving().await;
    fs::write(node.file("servers"), "4711\n4712\n").unwrap();
    node.device().detach(99).await;
    let commands = fs::read_to_string(node.file("commands")).unwrap();
    for server in [4711, 4712] {
        let command = format!("terminate_client {server} 99\n");
        assert!(commands.contains(&command), "{commands}");
    }
    node.end().await;
}

#[tokio::test]
async fn a_worker_that_cuda_keeps_away_from_the_server_is_noticed() {
    let node = Node::serving().await;
    let share = ComputeShare::new(50.0).unwrap();
    let observed = |usable| ObservedShare {
        share: Some(share),
        multiprocessors: Some(132),
        usable: Some(usable),
    };
    fs::write(node.file("servers"), "4711\n").unwrap();
    fs::write(node.file("clients"), "99\n").unwrap();
    node.device().check(99, observed(66)).await;
    assert!(node.mps.device(GPU).is_some());
    node.device().clone().check(99, observed(132)).await;
    let ignored = MpsFailure::ShareIgnored {
        pid: 99,
        share,
        multiprocessors: 132,
    };
    assert_eq!(
        *node.mps.devices[GPU].sharing.borrow(),
        GpuSharing::TimeSliced(ignored)
    );
    node.mps.devices[GPU].sharing.send_replace(GpuSharing::Mps);
    fs::remove_file(node.file("clients")).unwrap();
    node.device().clone().check(99, observed(66)).await;
    assert_eq!(
        *node.mps.devices[GPU].sharing.borrow(),
        GpuSharing::TimeSliced(MpsFailure::NoClients { pid: 99 })
    );
    node.mps.devices[GPU].sharing.send_replace(GpuSharing::Mps);
    node.end().await;
}

#[test]
fn a_memory_limit_leaves_room_for_the_context_and_is_whole_mebibytes() {
    assert_eq!(memory_limit_mib(ByteCount::ZERO), 1024);
    assert_eq!(memory_limit_mib(ByteCount::new(4096 << 20)), 1024 + 5120);
    assert_eq!(memory_limit_mib(ByteCount::new(1)), 1025);
    assert_eq!(memory_limit_mib(ByteCount::new(u64::MAX)), 1 << 44);
}

#[test]
fn a_share_is_ignored_if_it_excludes_multiprocessors_and_all_are_usable() {
    let ignored = |share: f64, usable: Option<u32>| {
        let observed = ObservedShare {
            share: Some(ComputeShare::new(share).unwrap()),
            multiprocessors: Some(132),
            usable,
        };
        observed.failure(1).is_some()
    };
    assert!(ignored(50.0, Some(132)));
    assert!(!ignored(50.0, Some(66)));
    assert!(!ignored(50.0, Some(64)));
    assert!(!ignored(100.0, Some(132)));
    assert!(!ignored(99.0, Some(132)));
    assert!(!ignored(50.0, None));
}
