//! The pool worker: one process with many replicas, which come and go.

use std::{fs, net::SocketAddr, path::Path};

use packhorse_wire::{FailureKind, WeightsReport};
use packhorse_worker_agent::handoff::{
    Handoff, MemberTask, Members, PipelineSettings, PoolTask, ServeTask, Work, WorkerReport,
    exit_code,
};

use crate::{
    confinement::{SECRET, ask, read, reader},
    gateway::{Link, Tensor},
    process::{Worker, serve_task, wait_for_some},
    torch::{affine, modules, moody},
};

/// A pool worker and the members that its agent wants.
pub(crate) struct PoolWorker {
    pub(crate) worker: Worker,
    members: Members,
    starts: u64,
}

impl PoolWorker {
    fn start() -> Self {
        Self::of(Worker::pool(&task(60_000), &[]))
    }

    pub(crate) fn of(worker: Worker) -> Self {
        Self {
            worker,
            members: Members::new(),
            starts: 0,
        }
    }

    fn handoff(&self, task: &ServeTask) -> Handoff {
        self.worker.handoff().member(task.replica)
    }

    /// Prepares the folder of a member, as an agent does, and names it.
    pub(crate) fn begin(&mut self, task: &ServeTask) {
        let handoff = self.handoff(task);
        let _ = fs::remove_dir_all(handoff.dir());
        fs::create_dir(handoff.dir()).unwrap();
        let ServeTask {
            replica,
            execution,
            batch_size,
            ..
        } = task.clone();
        let member = MemberTask {
            replica,
            execution,
            batch_size,
        };
        handoff.write_task(&member).unwrap();
        self.starts += 1;
        self.members.insert(replica, self.starts);
        self.name();
    }

    pub(crate) fn end(&mut self, task: &ServeTask) {
        self.members.remove(&task.replica).unwrap();
        self.name();
    }

    fn name(&self) {
        let share = |_: &Path| Ok(());
        self.worker
            .handoff()
            .write_members(&self.members, share)
            .unwrap();
    }

    /// Waits for a report of a member for which `pick` returns something.
    pub(crate) fn wait_for<T>(
        &self,
        task: &ServeTask,
        pick: impl Fn(WorkerReport) -> Option<T>,
    ) -> T {
        let handoff = self.handoff(task);
        let report = || handoff.read_status().unwrap().map(|status| status.phase);
        let log = || fs::read_to_string(self.worker.handoff().log_path()).unwrap();
        wait_for_some(|| pick(report()?)).unwrap_or_else(|| panic!("{:?}\n{}", report(), log()))
    }

    fn connect(&self, task: &ServeTask, secret: &[u8]) -> Link {
        Link::connect(self.address(task), task, secret).unwrap()
    }

    /// Connects as a gateway that decides about weights. Also returns the first report on them.
    pub(crate) fn connect_deciding(&self, task: &ServeTask) -> (Link, WeightsReport) {
        Link::connect_deciding(self.address(task), task)
    }

    fn address(&self, task: &ServeTask) -> SocketAddr {
        self.wait_for(task, |report| match report {
            WorkerReport::Ready { address, .. } => Some(address),
            WorkerReport::Failed { reason, .. } => panic!("{reason}"),
            _ => None,
        })
    }

    fn failure(&self, task: &ServeTask) -> (String, bool) {
        self.wait_for(task, |report| match report {
            WorkerReport::Failed { reason, permanent } => Some((reason, permanent)),
            WorkerReport::Ready { .. } => panic!("it did not fail"),
            _ => None,
        })
    }

    /// Waits for the failure of a member that has served.
    pub(crate) fn failure_of_served(&self, task: &ServeTask) -> (String, bool) {
        self.wait_for(task, |report| match report {
            WorkerReport::Failed { reason, permanent } => Some((reason, permanent)),
            _ => None,
        })
    }

    fn wait_until_ended(&self, task: &ServeTask) {
        self.wait_for(task, |report| (report == WorkerReport::Ended).then_some(()));
    }
}

pub(crate) fn task(batch_limit_ms: u64) -> PoolTask {
    PoolTask {
        links: serve_task(affine().execution).links,
        pipeline: PipelineSettings::default(),
        batch_limit_ms,
        memory_limit: None,
        cuda_device: None,
        simulated: false,
        warm_limit: None,
        reads: vec![modules()],
        writes: Vec::new(),
    }
}

/// The task as that of another replica and model.
pub(crate) fn named(task: ServeTask, number: u32) -> ServeTask {
    let mut task = task;
    task.replica = format!("5-{number}").parse().unwrap();
    task.execution.program.model = format!("m{number}:1").parse().unwrap();
    task
}

/// Sends a row of three to the model that adds one, and checks the answer.
fn ask_moody(link: &mut Link, id: u64) {
    link.send(id, 1, &[Tensor::fp32(&[1, 3], &[7.0, 8.0, 9.0])]);
    let (header, outputs) = link.result();
    assert_eq!(header.id.0, id);
    assert_eq!(outputs, [Tensor::fp32(&[1, 3], &[8.0, 9.0, 10.0])]);
}

fn ask_affine(link: &mut Link, id: u64) {
    link.send(id, 1, &[Tensor::fp32(&[1, 3], &[1.0, 2.0, 3.0])]);
    let (_, outputs) = link.result();
    assert_eq!(outputs, [Tensor::fp32(&[1, 2], &[24.0, 22.0])]);
}

#[test]
fn members_come_and_go_and_each_answers_for_its_own_program() {
    let mut pool = PoolWorker::start();
    let (first, second) = (named(moody(), 1), named(affine(), 2));
    pool.begin(&first);
    pool.begin(&second);
    let mut of_first = pool.connect(&first, b"");
    let mut of_second = pool.connect(&second, b"");
    for id in 0..5 {
        ask_moody(&mut of_first, id);
        ask_affine(&mut of_second, id);
    }
    // No other replica is found at the address of one.
    let place = pool.wait_for(&first, |report| match report {
        WorkerReport::Ready { address, .. } => Some(address),
        _ => None,
    });
    assert!(Link::connect(place, &second, b"").is_err());

    pool.end(&first);
    pool.wait_until_ended(&first);
    assert!(
        std::net::TcpStream::connect(place).is_err(),
        "it still listens"
    );
    ask_affine(&mut of_second, 9);
    // The same replica begins again, and another beside it.
    pool.begin(&first);
    let third = named(affine(), 3);
    pool.begin(&third);
    ask_moody(&mut pool.connect(&first, b""), 1);
    ask_affine(&mut pool.connect(&third, b""), 1);
    ask_affine(&mut of_second, 10);

    pool.worker.terminate();
    for task in [&first, &second, &third] {
        pool.wait_until_ended(task);
    }
    assert_eq!(pool.worker.exit_code(), Some(i32::from(exit_code::DONE)));
}

#[test]
fn a_member_that_cannot_be_served_fails_alone() {
    let mut pool = PoolWorker::start();
    let sound = named(moody(), 1);
    let mut broken = named(affine(), 2);
    broken.execution.program.inputs.clear();
    pool.begin(&sound);
    pool.begin(&broken);
    let (reason, permanent) = pool.failure(&broken);
    assert!(permanent, "{reason}");
    let mut link = pool.connect(&sound, b"");
    ask_moody(&mut link, 1);
    // A program that throws answers that batch with a failure, as in a worker of its own.
    link.send(2, 1, &[Tensor::fp32(&[1, 3], &[1.0, 0.0, 0.0])]);
    assert_eq!(link.failure().kind, FailureKind::ModuleThrew);
    ask_moody(&mut link, 3);
    // Named again with a task that works, it is served.
    let mended = named(affine(), 2);
    pool.begin(&mended);
    ask_affine(&mut pool.connect(&mended, b""), 1);
}

#[test]
fn batches_that_were_sent_are_answered_before_a_member_ends() {
    let mut pool = PoolWorker::start();
    let task = named(moody(), 1);
    pool.begin(&task);
    let mut link = pool.connect(&task, b"");
    for id in 0..4 {
        link.send(id, 1, &[Tensor::fp32(&[1, 3], &[7.0, 8.0, 9.0])]);
    }
    pool.end(&task);
    let mut answered = 0;
    while answered < 4 {
        match link.message().unwrap() {
            packhorse_wire::ToGateway::Result(header) => {
                link.outputs_of(&header);
                answered += 1;
            }
            packhorse_wire::ToGateway::Draining => {}
            other => panic!("{other:?}"),
        }
    }
    drop(link);
    pool.wait_until_ended(&task);
}

#[test]
fn a_batch_that_does_not_end_ends_the_process_and_its_model_is_named() {
    let mut pool = PoolWorker::of(Worker::pool(&task(2_000), &[]));
    let (hangs, waits) = (named(moody(), 1), named(affine(), 2));
    pool.begin(&hangs);
    pool.begin(&waits);
    let mut link = pool.connect(&hangs, b"");
    let mut other = pool.connect(&waits, b"");
    let model = hangs.execution.program.model.clone();
    let handoff = pool.worker.handoff();
    link.send(1, 1, &[Tensor::fp32(&[1, 3], &[4.0, 0.0, 0.0])]);
    wait_for_some(|| (handoff.read_note(Work::Running)? == model).then_some(())).unwrap();
    other.send(2, 1, &[Tensor::fp32(&[1, 3], &[1.0, 2.0, 3.0])]);
    assert_eq!(link.failure().kind, FailureKind::TimedOut);
    assert_eq!(other.failure().kind, FailureKind::NotBegun);
    let code = pool.worker.exit_code();
    assert_eq!(code, Some(i32::from(exit_code::BATCH_TIMED_OUT)));
    assert_eq!(handoff.read_note(Work::Running), Some(model));
    assert_eq!(handoff.read_note(Work::Loading), None);
}

#[test]
fn members_are_confined_and_need_the_secret() {
    let dir = tempfile::tempdir().unwrap();
    let token = dir.path().join("admin-token");
    fs::write(&token, SECRET).unwrap();
    let secret = dir.path().join("link-secret");
    fs::write(&secret, SECRET).unwrap();
    let mut confined = task(60_000);
    confined.links.secret_file = Some(secret.clone());
    let mut pool = PoolWorker::of(Worker::pool(&confined, &["--confine"]));
    let (first, second) = (named(reader(), 1), named(moody(), 2));
    pool.begin(&first);
    let mut link = pool.connect(&first, SECRET);
    for (id, file) in (1..).zip([&token, &secret]) {
        ask(&mut link, id, file);
        let text = link.failure().message;
        assert!(text.contains("Permission denied"), "{text}");
    }
    let artifact = modules().join("Reader.pt");
    assert_eq!(read(&mut link, 9, Path::new(&artifact))[..2], *b"PK");
    // A member that comes later can still listen.
    pool.begin(&second);
    ask_moody(&mut pool.connect(&second, SECRET), 1);
    let place = pool.wait_for(&second, |report| match report {
        WorkerReport::Ready { address, .. } => Some(address),
        _ => None,
    });
    assert!(Link::connect(place, &second, b"another").is_err());
}

#[test]
fn a_further_member_costs_a_fraction_of_a_process() {
    let mut pool = PoolWorker::start();
    let memory = |pool: &PoolWorker| {
        let status = fs::read_to_string(format!("/proc/{}/status", pool.worker.pid())).unwrap();
        let resident = status
            .lines()
            .find_map(|line| line.strip_prefix("RssAnon:"));
        let kib = resident.unwrap().trim().trim_end_matches(" kB");
        kib.parse::<u64>().unwrap() / 1024
    };
    let first = named(affine(), 1);
    pool.begin(&first);
    ask_affine(&mut pool.connect(&first, b""), 1);
    let alone = memory(&pool);
    let others: Vec<ServeTask> = (2..=21).map(|number| named(affine(), number)).collect();
    for task in &others {
        pool.begin(task);
    }
    for task in &others {
        ask_affine(&mut pool.connect(task, b""), 1);
    }
    let together = memory(&pool);
    println!("a member alone: {alone} MiB; with 20 others: {together} MiB");
    // A process of its own has more than 100 MiB for itself.
    assert!(together < alone + 20 * 10, "{alone} MiB, {together} MiB");
}
