//! The pipeline with stages that say when they begin and end when they are told to: which of them overlap is decided, not timed.

use std::{
    collections::BTreeMap,
    sync::{Arc, mpsc},
    thread::JoinHandle,
};

use packhorse_cluster::{ByteCount, Program};
use packhorse_wire::TensorHeader;

use super::*;
use crate::executor::Repeated;

/// Far above what anything here takes: only a test that has failed waits so long.
const LIMIT: Duration = Duration::from_mins(1);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    CopyIn,
    Compute,
    CopyOut,
}

type Outcome = Result<(), ExecutionError>;

/// How the stages of the batches end.
type Ends = Arc<Mutex<BTreeMap<(u32, Stage), mpsc::Receiver<Outcome>>>>;

/// A batch whose stages wait to be told how they end.
struct Told {
    number: u32,
    stage: Stage,
    began: mpsc::Sender<(u32, Stage)>,
    ends: Ends,
}

impl Told {
    fn at(mut self: Box<Self>, stage: Stage) -> Result<Box<Self>, ExecutionError> {
        self.stage = stage;
        self.began.send((self.number, stage)).unwrap();
        let end = self.ends.lock().unwrap().remove(&(self.number, stage));
        end.expect("every stage runs once")
            .recv_timeout(LIMIT)
            .unwrap()?;
        Ok(self)
    }
}

impl PreparedBatch for Told {
    fn input_mut(&mut self, _index: usize) -> &mut [u8] {
        &mut []
    }

    fn copy_in(self: Box<Self>) -> Result<Box<dyn LoadedBatch>, ExecutionError> {
        Ok(self.at(Stage::CopyIn)?)
    }
}

impl LoadedBatch for Told {
    fn compute(self: Box<Self>) -> Result<Box<dyn ComputedBatch>, ExecutionError> {
        Ok(self.at(Stage::Compute)?)
    }

    fn repeat(&self, _: Repeated, _: &mut dyn FnMut() -> bool) -> Result<u64, ExecutionError> {
        Ok(0)
    }
}

impl ComputedBatch for Told {
    fn copy_out(self: Box<Self>) -> Result<Executed, ExecutionError> {
        self.at(Stage::CopyOut)?;
        Ok(Executed {
            outputs: Vec::new(),
            copy_in: Duration::ZERO,
            compute: Duration::ZERO,
            copy_out: Duration::ZERO,
        })
    }
}

/// What a batch's sender was told.
type Answer = (u32, Result<(), FailureKind>);

struct Asking {
    number: u32,
    answers: mpsc::Sender<Answer>,
    there: bool,
}

impl Sender for Asking {
    fn is_there(&self) -> bool {
        self.there
    }

    fn result(self: Box<Self>, _outputs: Vec<OutputTensor>, _stages: StageDurations) {
        self.answers.send((self.number, Ok(()))).unwrap();
    }

    fn failure(self: Box<Self>, kind: FailureKind, _message: &str) {
        self.answers.send((self.number, Err(kind))).unwrap();
    }
}

struct NoExecutor;

impl Executor for NoExecutor {
    fn prepare(&self, _inputs: &[TensorHeader]) -> Result<Box<dyn PreparedBatch>, ExecutionError> {
        Err(ExecutionError::OutOfMemory(
            "it prepares nothing".to_owned(),
        ))
    }

    fn memory(&self, _batch_size: u32) -> Option<ByteCount> {
        None
    }
}

struct Stand {
    pipeline: Arc<Pipeline>,
    running: Option<JoinHandle<Result<(), DeviceFailed>>>,
    starting: mpsc::Sender<(u32, Stage)>,
    began: mpsc::Receiver<(u32, Stage)>,
    ends: Ends,
    tell: BTreeMap<(u32, Stage), mpsc::Sender<Outcome>>,
    answer: mpsc::Sender<Answer>,
    answers: mpsc::Receiver<Answer>,
}

impl Stand {
    fn new(streams: bool, in_flight: u32) -> Self {
        let options = handoff::PipelineSettings {
            in_flight,
            streams,
            graphs: false,
        };
        let pipeline = Arc::new(Pipeline::new(options));
        let program = Program {
            model: "m:1".parse().unwrap(),
            artifact: format!("sha256:{}", "ab".repeat(32)).parse().unwrap(),
            max_batch_size: 0,
            inputs: Vec::new(),
            outputs: Vec::new(),
        };
        let runs = Arc::clone(&pipeline);
        let running = Some(thread::spawn(move || runs.run(&NoExecutor, &program)));
        let (starting, began) = mpsc::channel();
        let (answer, answers) = mpsc::channel();
        Self {
            pipeline,
            running,
            starting,
            began,
            ends: Arc::default(),
            tell: BTreeMap::new(),
            answer,
            answers,
        }
    }

    fn push(&mut self, number: u32) {
        self.push_from(number, true);
    }

    fn push_from(&mut self, number: u32, there: bool) {
        for stage in [Stage::CopyIn, Stage::Compute, Stage::CopyOut] {
            let (tell, end) = mpsc::channel();
            self.tell.insert((number, stage), tell);
            self.ends.lock().unwrap().insert((number, stage), end);
        }
        let batch = Told {
            number,
            stage: Stage::CopyIn,
            began: self.starting.clone(),
            ends: Arc::clone(&self.ends),
        };
        let sender = Asking {
            number,
            answers: self.answer.clone(),
            there,
        };
        self.pipeline.push(Job {
            batch: Box::new(batch),
            rows: 1,
            receive: Duration::ZERO,
            received_at: now(),
            sender: Box::new(sender),
        });
    }

    /// Waits until it computes no more: how that came.
    fn ended(&mut self) -> Result<(), DeviceFailed> {
        self.running.take().unwrap().join().unwrap()
    }

    /// Waits until these stages have begun, in whatever order.
    fn begun<const N: usize>(&self, expected: [(u32, Stage); N]) {
        let mut begun = [(); N].map(|()| self.began.recv_timeout(LIMIT).unwrap());
        begun.sort_unstable();
        assert_eq!(begun, expected);
    }

    fn end(&self, number: u32, stage: Stage) {
        self.end_with(number, stage, Ok(()));
    }

    fn end_with(&self, number: u32, stage: Stage, outcome: Outcome) {
        self.tell[&(number, stage)].send(outcome).unwrap();
    }

    /// Lets all stages of a batch end when they begin.
    fn end_all(&self, number: u32) {
        for stage in [Stage::CopyIn, Stage::Compute, Stage::CopyOut] {
            self.end(number, stage);
        }
    }

    fn answer(&self) -> Answer {
        self.answers.recv_timeout(LIMIT).unwrap()
    }

    fn nothing_else_has_begun(&self) {
        assert_eq!(self.began.try_recv(), Err(mpsc::TryRecvError::Empty));
    }
}

#[test]
fn with_streams_one_batch_is_copied_while_another_is_computed() {
    let mut stand = Stand::new(true, 3);
    for number in 1..=3 {
        stand.push(number);
    }
    stand.begun([(1, Stage::CopyIn)]);
    stand.end(1, Stage::CopyIn);
    stand.begun([(1, Stage::Compute), (2, Stage::CopyIn)]);
    stand.end(2, Stage::CopyIn);
    stand.begun([(3, Stage::CopyIn)]);
    stand.end(1, Stage::Compute);
    stand.begun([(1, Stage::CopyOut), (2, Stage::Compute)]);
    stand.end(3, Stage::CopyIn);
    stand.end(2, Stage::Compute);
    stand.begun([(3, Stage::Compute)]);
    for (number, stage) in [
        (3, Stage::Compute),
        (1, Stage::CopyOut),
        (2, Stage::CopyOut),
        (3, Stage::CopyOut),
    ] {
        stand.end(number, stage);
    }
    for number in 1..=3 {
        assert_eq!(stand.answer(), (number, Ok(())));
    }
}

#[test]
fn no_more_batches_than_may_be_in_flight_are_in_the_stages() {
    let mut stand = Stand::new(true, 2);
    for number in 1..=3 {
        stand.push(number);
    }
    stand.begun([(1, Stage::CopyIn)]);
    stand.end(1, Stage::CopyIn);
    stand.begun([(1, Stage::Compute), (2, Stage::CopyIn)]);
    stand.end(2, Stage::CopyIn);
    stand.end(1, Stage::Compute);
    stand.begun([(1, Stage::CopyOut), (2, Stage::Compute)]);
    // Nothing but the third's copy could begin, and it would at once.
    stand.nothing_else_has_begun();
    stand.end(1, Stage::CopyOut);
    assert_eq!(stand.answer(), (1, Ok(())));
    stand.begun([(3, Stage::CopyIn)]);
    stand.end(2, Stage::Compute);
    stand.end(2, Stage::CopyOut);
    stand.end_all(3);
    assert_eq!(stand.answer(), (2, Ok(())));
    assert_eq!(stand.answer(), (3, Ok(())));
}

#[test]
fn without_streams_a_batch_begins_when_the_one_before_it_has_ended() {
    let mut stand = Stand::new(false, 2);
    stand.push(1);
    stand.push(2);
    for number in [1, 2] {
        for stage in [Stage::CopyIn, Stage::Compute, Stage::CopyOut] {
            stand.begun([(number, stage)]);
            stand.nothing_else_has_begun();
            stand.end(number, stage);
        }
        assert_eq!(stand.answer(), (number, Ok(())));
    }
}

#[test]
fn a_failure_in_any_stage_is_that_batchs_alone_and_keeps_its_place() {
    for streams in [true, false] {
        for stage in [Stage::CopyIn, Stage::Compute, Stage::CopyOut] {
            for (error, kind) in [
                (
                    ExecutionError::ModuleThrew(String::new()),
                    FailureKind::ModuleThrew,
                ),
                (
                    ExecutionError::OutOfMemory(String::new()),
                    FailureKind::OutOfMemory,
                ),
            ] {
                let mut stand = Stand::new(streams, 2);
                for number in 1..=3 {
                    stand.push(number);
                }
                stand.end_all(1);
                for earlier in [Stage::CopyIn, Stage::Compute, Stage::CopyOut] {
                    let outcome = if earlier == stage {
                        Err(error.clone())
                    } else {
                        Ok(())
                    };
                    stand.end_with(2, earlier, outcome);
                }
                stand.end_all(3);
                let answers = [stand.answer(), stand.answer(), stand.answer()];
                assert_eq!(answers, [(1, Ok(())), (2, Err(kind)), (3, Ok(()))]);
            }
        }
    }
}

#[test]
fn what_is_there_when_it_closes_is_answered() {
    for streams in [true, false] {
        let mut stand = Stand::new(streams, 2);
        for number in 1..=4 {
            stand.push(number);
        }
        stand.begun([(1, Stage::CopyIn)]);
        stand.pipeline.close();
        for number in 1..=4 {
            stand.end_all(number);
        }
        for number in 1..=4 {
            assert_eq!(stand.answer(), (number, Ok(())));
        }
        assert!(stand.ended().is_ok());
    }
}

#[test]
fn a_batch_that_nobody_waits_for_any_more_is_not_computed() {
    let mut stand = Stand::new(true, 1);
    stand.push(1);
    stand.begun([(1, Stage::CopyIn)]);
    stand.push_from(2, false);
    stand.push(3);
    stand.end_all(1);
    stand.end_all(3);
    stand.begun([(1, Stage::Compute), (1, Stage::CopyOut), (3, Stage::CopyIn)]);
    assert_eq!(stand.answer(), (1, Ok(())));
    assert_eq!(stand.answer(), (3, Ok(())));
}

#[test]
fn a_device_that_fails_ends_it_and_nothing_in_flight_is_answered() {
    for streams in [true, false] {
        let mut stand = Stand::new(streams, 2);
        for number in 1..=3 {
            stand.push(number);
        }
        for number in 1..=3 {
            stand.end(number, Stage::CopyIn);
        }
        let failed = ExecutionError::DeviceFailed("an illegal access".to_owned());
        // The third one may have begun by the time at which the first one's failure is known.
        for number in 1..=3 {
            stand.end_with(number, Stage::Compute, Err(failed.clone()));
        }
        let DeviceFailed(reason) = stand.ended().unwrap_err();
        assert_eq!(reason, "an illegal access");
        // Nor is what comes before the process has ended.
        stand.push(4);
        drop(stand.answer);
        assert_eq!(stand.answers.try_iter().count(), 0);
    }
}

#[test]
fn the_watch_answers_a_hung_batch_and_all_behind_it() {
    let mut stand = Stand::new(true, 2);
    for number in 1..=3 {
        stand.push(number);
    }
    stand.end(1, Stage::CopyIn);
    stand.end(2, Stage::CopyIn);
    stand.begun([(1, Stage::CopyIn), (1, Stage::Compute), (2, Stage::CopyIn)]);
    let reason = stand.pipeline.watch(Duration::from_millis(1));
    assert_eq!(reason, "a batch of 1 was still running after 1 ms");
    for number in 1..=3 {
        assert_eq!(stand.answer(), (number, Err(FailureKind::TimedOut)));
    }
    stand.push(4);
    assert_eq!(stand.answer(), (4, Err(FailureKind::TimedOut)));
}
