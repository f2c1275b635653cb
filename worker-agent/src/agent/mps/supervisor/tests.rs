//! The supervisor with real processes: a script that behaves as the control daemon does.

use std::{
    collections::BTreeMap,
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
};

use packhorse_cluster::{ByteCount, ComputeShare};
use tempfile::TempDir;

use super::*;
use crate::{
    agent::mps::{Mps, MpsDevice, Seen},
    handoff::ProcessIdentity,
};

/// Nothing that is waited for here takes nearly as long, on however busy a machine.
const LIMIT: Duration = Duration::from_secs(30);
const PACE: Pace = Pace {
    look: Duration::from_millis(20),
    start: Duration::from_secs(20),
    mend: Duration::from_secs(20),
    first_pause: Duration::from_millis(20),
    longest_pause: Duration::from_millis(100),
};
const GPU: &str = "GPU-0a1b2c3d";

/// A node with one GPU and its daemon's folder.
struct Node {
    root: TempDir,
    program: PathBuf,
    pace: Pace,
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
            pace: PACE,
            mps: Mps::default(),
            sender,
            events,
        }
    }

    fn control(&self) -> Control {
        Control::new(&self.program, GPU, self.root.path()).unwrap()
    }

    fn file(&self, name: &str) -> PathBuf {
        let [(_, pipe), _] = self.control().environment();
        PathBuf::from(pipe).join(name)
    }

    fn supervise(&mut self) {
        let control = self.control();
        self.mps.supervise(GPU, control, self.pace, &self.sender);
    }

    async fn until(&self, done: impl FnMut(&Sharing) -> bool) -> Sharing {
        let mut sharing = self.mps.devices[GPU].sharing.subscribe();
        let waited = timeout(LIMIT, sharing.wait_for(done)).await;
        waited.expect("in time").unwrap().clone()
    }

    async fn serving() -> Self {
        let mut node = Self::new();
        node.supervise();
        node.until(|sharing| *sharing == Sharing::Mps).await;
        node
    }

    fn device(&self) -> &MpsDevice {
        self.mps.device(GPU).unwrap()
    }

    fn daemon(&self) -> ProcessIdentity {
        let pid = fs::read_to_string(self.file("daemon")).unwrap();
        ProcessIdentity::of(pid.trim().parse().unwrap()).unwrap()
    }

    async fn event(&mut self) -> Event {
        let event = timeout(LIMIT, self.events.recv()).await;
        event.expect("in time").unwrap()
    }

    /// Until nothing is there any more that this test has started.
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

fn failed(cause: &str) -> Event {
    Event::DeviceFailed(GPU.to_owned(), cause.to_owned())
}

fn recovered() -> Event {
    Event::DeviceRecovered(GPU.to_owned())
}

#[tokio::test]
async fn workers_of_a_gpu_with_a_daemon_are_led_to_it() {
    let node = Node::serving().await;
    let device = fs::read_to_string(node.file("device")).unwrap();
    assert_eq!(device.trim(), GPU, "the daemon sees this GPU only");
    let pipe = node.file("");
    let of_memory = |memory| {
        let environment = node.device().environment(memory);
        BTreeMap::<&str, OsString>::from_iter(environment)
    };
    let unlimited = of_memory(None);
    assert_eq!(Path::new(&unlimited["CUDA_MPS_PIPE_DIRECTORY"]), pipe);
    assert!(!unlimited.contains_key("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"));
    let limited = of_memory(Some(ByteCount::new(4 << 30)));
    assert_eq!(limited["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"], "0=6144M");
    let mode = std::os::unix::fs::PermissionsExt::mode(&fs::metadata(pipe).unwrap().permissions());
    assert_eq!(mode & 0o777, 0o700);
    node.end().await;
}

#[tokio::test]
async fn without_the_program_replicas_take_turns_and_the_reason_is_said() {
    let mut node = Node::new();
    node.program = PathBuf::from("no-such-mps-control");
    node.supervise();
    let sharing = node.until(|sharing| *sharing != Sharing::Starting).await;
    let reason = "no-such-mps-control cannot be run: No such file or directory (os error 2)";
    assert_eq!(sharing, Sharing::TimeSliced(reason.to_owned()));
    assert!(node.mps.device(GPU).is_none());
    assert!(node.events.try_recv().is_err(), "nothing has failed");
}

#[tokio::test]
async fn a_daemon_that_refuses_to_start_is_tried_again() {
    let mut node = Node::new();
    fs::write(node.file("refuse"), "").unwrap();
    node.supervise();
    let sharing = node.until(|sharing| *sharing != Sharing::Starting).await;
    let reason =
        "the MPS daemon ended with status 1: An instance of this daemon is already running";
    assert_eq!(sharing, Sharing::TimeSliced(reason.to_owned()));
    fs::remove_file(node.file("refuse")).unwrap();
    node.until(|sharing| *sharing == Sharing::Mps).await;
    assert!(node.events.try_recv().is_err(), "nothing has failed");
    node.end().await;
}

#[tokio::test]
async fn a_daemon_that_never_answers_is_given_up() {
    let mut node = Node::new();
    node.pace.start = Duration::from_millis(200);
    fs::write(node.file("mute"), "").unwrap();
    node.supervise();
    let sharing = node.until(|sharing| *sharing != Sharing::Starting).await;
    let reason = "the MPS daemon did not answer within 200ms";
    assert_eq!(sharing, Sharing::TimeSliced(reason.to_owned()));
    fs::remove_file(node.file("mute")).unwrap();
    node.until(|sharing| *sharing == Sharing::Mps).await;
    node.end().await;
}

#[tokio::test]
async fn a_daemon_that_dies_fails_its_device_and_is_started_again() {
    let mut node = Node::serving().await;
    let first = node.daemon();
    let pid = nix::unistd::Pid::from_raw(first.pid.cast_signed());
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL).unwrap();
    assert_eq!(
        node.event().await,
        failed("the MPS daemon was killed by signal 9")
    );
    assert_eq!(node.event().await, recovered());
    assert_ne!(node.daemon(), first);
    assert!(node.mps.device(GPU).is_some());
    node.end().await;
}

#[tokio::test]
async fn a_failed_server_fails_its_device_until_it_is_mended() {
    let mut node = Node::serving().await;
    let daemon = node.daemon();
    fs::write(node.file("status"), "FAULT\n").unwrap();
    fs::write(node.file("servers"), "4711\n").unwrap();
    let cause = "a fatal fault of one of the replicas on this GPU";
    assert_eq!(node.event().await, failed(cause));
    fs::write(node.file("status"), "ACTIVE\n").unwrap();
    assert_eq!(node.event().await, recovered());
    assert_eq!(node.daemon(), daemon, "it has stayed");
    node.end().await;
}

#[tokio::test]
async fn a_server_that_stays_failed_gets_a_new_daemon() {
    let mut node = Node::new();
    node.pace.mend = Duration::from_millis(50);
    node.supervise();
    node.until(|sharing| *sharing == Sharing::Mps).await;
    let first = node.daemon();
    fs::write(node.file("status"), "FAULT\n").unwrap();
    fs::write(node.file("servers"), "4711\n").unwrap();
    node.event().await;
    // The device stays failed over the change of daemons, as long as the new one says the same.
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
async fn the_next_agent_adopts_the_daemon_of_the_one_before() {
    let mut node = Node::serving().await;
    let daemon = node.daemon();
    node.mps = Mps::default();
    node.supervise();
    node.until(|sharing| *sharing == Sharing::Mps).await;
    assert_eq!(node.daemon(), daemon);
    assert!(node.events.try_recv().is_err(), "nothing has failed");
    node.end().await;
}

#[tokio::test]
async fn a_client_is_detached_from_every_server_before_it_is_killed() {
    let node = Node::serving().await;
    fs::write(node.file("servers"), "4711\n4712\n").unwrap();
    node.device().detach(99).await;
    let told = fs::read_to_string(node.file("told")).unwrap();
    assert!(told.contains("terminate_client 4711 99\n"), "{told}");
    assert!(told.contains("terminate_client 4712 99\n"), "{told}");
    node.end().await;
}

#[tokio::test]
async fn a_worker_that_cuda_keeps_away_from_the_server_is_noticed() {
    let node = Node::serving().await;
    let seen = |usable| Seen {
        share: Some(ComputeShare::new(50.0).unwrap()),
        of: Some(132),
        usable,
    };
    fs::write(node.file("servers"), "4711\n").unwrap();
    fs::write(node.file("clients"), "99\n").unwrap();
    node.device().check(99, seen(Some(66))).await;
    assert!(node.mps.device(GPU).is_some());
    node.device().clone().check(99, seen(Some(132))).await;
    let reason = "worker 99 has a share of 50 % and may use all 132 multiprocessors: CUDA does not use MPS there";
    assert_eq!(
        *node.mps.devices[GPU].sharing.borrow(),
        Sharing::TimeSliced(reason.to_owned())
    );
    node.mps.devices[GPU].sharing.send_replace(Sharing::Mps);
    fs::remove_file(node.file("clients")).unwrap();
    node.device().clone().check(99, seen(Some(66))).await;
    let reason = "CUDA does not use MPS in worker 99".to_owned();
    assert_eq!(
        *node.mps.devices[GPU].sharing.borrow(),
        Sharing::TimeSliced(reason)
    );
    node.mps.devices[GPU].sharing.send_replace(Sharing::Mps);
    node.end().await;
}
