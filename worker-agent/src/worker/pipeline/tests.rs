//! The pipeline with stages that report their begin and end on command, so that the overlap of stages is tested without timing.

use std::{
    collections::BTreeMap,
    sync::{Arc, mpsc},
    thread::JoinHandle,
};

use packhorse_cluster::{ByteCount, Program};
use packhorse_wire::TensorHeader;

use super::*;
use crate::executor::RepeatedStage;

/// A time limit far above what any step takes.
const LIMIT: Duration = Duration::from_mins(1);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    CopyIn,
    Compute,
    CopyOut,
}

type Outcome = Result<(), ExecutionError>;

/// The outcomes of the stages, which the test sends.
type Ends = Arc<Mutex<BTreeMap<(u32, Stage), mpsc::Receiver<Outcome>>>>;

/// A batch whose stages wait for their outcome.
struct ScriptedBatch {
    number: u32,
    stage: Stage,
    began: mpsc::Sender<(u32, Stage)>,
    ends: Ends,
}

impl ScriptedBatch {
    fn run_stage(mut self: Box<Self>, stage: Stage) -> Result<Box<Self>, ExecutionError> {
        self.stage = stage;
        self.began.send((self.number, stage)).unwrap();
        let end = self.ends.lock().unwrap().remove(&(self.number, stage));
        end.expect("every stage runs once")
            .recv_timeout(LIMIT)
            .unwrap()?;
        Ok(self)
    }
}

impl PreparedBatch for ScriptedBatch {
    fn input_mut(&mut self, _index: usize) -> &mut [u8] {
        &mut []
    }

    fn copy_in(self: Box<Self>) -> Result<Box<dyn LoadedBatch>, ExecutionError> {
        Ok(self.run_stage(Stage::CopyIn)?)
    }
}

impl LoadedBatch for ScriptedBatch {
    fn compute(self: Box<Self>) -> Result<Box<dyn ComputedBatch>, ExecutionError> {
        Ok(self.run_stage(Stage::Compute)?)
    }

    fn repeat(&self, _: RepeatedStage, _: &mut dyn FnMut() -> bool) -> Result<u64, ExecutionError> {
        Ok(0)
    }
}

impl ComputedBatch for ScriptedBatch {
    fn copy_out(self: Box<Self>) -> Result<Executed, ExecutionError> {
        self.run_stage(Stage::CopyOut)?;
        Ok(Executed {
            outputs: Vec::new(),
            copy_in: Duration::ZERO,
            compute: Duration::ZERO,
            copy_out: Duration::ZERO,
        })
    }
}

/// The answer to a batch.
type Answer = (u32, Result<(), ExecutionError>);

struct TestReply {
    number: u32,
    answers: mpsc::Sender<Answer>,
    wanted: bool,
    /// The signal for which a result waits before it is sent.
    gate: Option<mpsc::Receiver<()>>,
}

impl BatchReply for TestReply {
    fn is_wanted(&self) -> bool {
        self.wanted
    }

    fn send_result(self: Box<Self>, _outputs: Vec<OutputTensor>, _stages: StageDurations) {
        if let Some(gate) = &self.gate {
            gate.recv_timeout(LIMIT).unwrap();
        }
        self.answers.send((self.number, Ok(()))).unwrap();
    }

    fn send_failure(self: Box<Self>, error: ExecutionError) {
        self.answers.send((self.number, Err(error))).unwrap();
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

fn program() -> Program {
    Program {
        model: "m:1".parse().unwrap(),
        artifact: format!("sha256:{}", "ab".repeat(32)).parse().unwrap(),
        max_batch_size: 0,
        inputs: Vec::new(),
        outputs: Vec::new(),
    }
}

/// A pipeline with a controlled executor.
struct TestBench {
    pipeline: Arc<Pipeline>,
    running: Option<JoinHandle<Result<(), DeviceFailed>>>,
    starting: mpsc::Sender<(u32, Stage)>,
    began: mpsc::Receiver<(u32, Stage)>,
    ends: Ends,
    outcomes: BTreeMap<(u32, Stage), mpsc::Sender<Outcome>>,
    answer: mpsc::Sender<Answer>,
    answers: mpsc::Receiver<Answer>,
}

impl TestBench {
    fn new(streams: bool, in_flight: u32) -> Self {
        let settings = PipelineSettings {
            in_flight,
            streams,
            graphs: false,
        };
        let pipeline = Arc::new(Pipeline::new(settings, None));
        let runs = Arc::clone(&pipeline);
        let running = Some(thread::spawn(move || runs.run()));
        let (starting, began) = mpsc::channel();
        let (answer, answers) = mpsc::channel();
        Self {
            pipeline,
            running,
            starting,
            began,
            ends: Arc::default(),
            outcomes: BTreeMap::new(),
            answer,
            answers,
        }
    }

    /// Creates a pipeline without streams that has answered a batch, number 1, in a short time.
    fn after_a_short_batch() -> Self {
        let mut bench = Self::new(false, 2);
        bench.push(1);
        bench.end_all(1);
        assert_eq!(bench.answer(), (1, Ok(())));
        bench
    }

    fn push(&mut self, number: u32) {
        self.push_with(number, true);
    }

    fn push_with(&mut self, number: u32, wanted: bool) {
        let batch = self.batch(number, wanted, None);
        self.pipeline.push(batch);
    }

    /// Pushes a batch whose result is sent when the gate that is returned opens.
    fn push_gated(&mut self, number: u32) -> mpsc::Sender<()> {
        let (open, gate) = mpsc::channel();
        let batch = self.batch(number, true, Some(gate));
        self.pipeline.push(batch);
        open
    }

    /// Receives a batch on a thread of its own, which may compute it.
    fn receive(&mut self, number: u32) -> JoinHandle<()> {
        let batch = self.batch(number, true, None);
        let pipeline = Arc::clone(&self.pipeline);
        thread::spawn(move || pipeline.push_or_run(batch))
    }

    fn batch(
        &mut self,
        number: u32,
        wanted: bool,
        gate: Option<mpsc::Receiver<()>>,
    ) -> ReceivedBatch {
        for stage in [Stage::CopyIn, Stage::Compute, Stage::CopyOut] {
            let (outcome, end) = mpsc::channel();
            self.outcomes.insert((number, stage), outcome);
            self.ends.lock().unwrap().insert((number, stage), end);
        }
        let batch = ScriptedBatch {
            number,
            stage: Stage::CopyIn,
            began: self.starting.clone(),
            ends: Arc::clone(&self.ends),
        };
        let reply = TestReply {
            number,
            answers: self.answer.clone(),
            wanted,
            gate,
        };
        ReceivedBatch {
            batch: Box::new(batch),
            rows: 1,
            program: Arc::new(program()),
            executor: Arc::new(NoExecutor),
            receive: Duration::ZERO,
            received_at: now(),
            reply: Box::new(reply),
        }
    }

    /// Waits until the pipeline has ended.
    fn ended(&mut self) -> Result<(), DeviceFailed> {
        self.running.take().unwrap().join().unwrap()
    }

    /// Waits until these stages have begun, in any order.
    fn await_begin<const N: usize>(&self, expected: [(u32, Stage); N]) {
        let mut begun = [(); N].map(|()| self.began.recv_timeout(LIMIT).unwrap());
        begun.sort_unstable();
        assert_eq!(begun, expected);
    }

    fn end(&self, number: u32, stage: Stage) {
        self.end_with(number, stage, Ok(()));
    }

    fn end_with(&self, number: u32, stage: Stage, outcome: Outcome) {
        self.outcomes[&(number, stage)].send(outcome).unwrap();
    }

    /// Makes all stages of a batch end when they begin.
    fn end_all(&self, number: u32) {
        for stage in [Stage::CopyIn, Stage::Compute, Stage::CopyOut] {
            self.end(number, stage);
        }
    }

    fn answer(&self) -> Answer {
        self.answers.recv_timeout(LIMIT).unwrap()
    }

    fn assert_nothing_else_began(&self) {
        assert_eq!(self.began.try_recv(), Err(mpsc::TryRecvError::Empty));
    }
}

#[test]
fn with_streams_one_batch_is_copied_while_another_is_computed() {
    let mut bench = TestBench::new(true, 3);
    for number in 1..=3 {
        bench.push(number);
    }
    bench.await_begin([(1, Stage::CopyIn)]);
    bench.end(1, Stage::CopyIn);
    bench.await_begin([(1, Stage::Compute), (2, Stage::CopyIn)]);
    bench.end(2, Stage::CopyIn);
    bench.await_begin([(3, Stage::CopyIn)]);
    bench.end(1, Stage::Compute);
    bench.await_begin([(1, Stage::CopyOut), (2, Stage::Compute)]);
    bench.end(3, Stage::CopyIn);
    bench.end(2, Stage::Compute);
    bench.await_begin([(3, Stage::Compute)]);
    for (number, stage) in [
        (3, Stage::Compute),
        (1, Stage::CopyOut),
        (2, Stage::CopyOut),
        (3, Stage::CopyOut),
    ] {
        bench.end(number, stage);
    }
    for number in 1..=3 {
        assert_eq!(bench.answer(), (number, Ok(())));
    }
}

#[test]
fn no_more_batches_than_may_be_in_flight_are_in_the_stages() {
    let mut bench = TestBench::new(true, 2);
    for number in 1..=3 {
        bench.push(number);
    }
    bench.await_begin([(1, Stage::CopyIn)]);
    bench.end(1, Stage::CopyIn);
    bench.await_begin([(1, Stage::Compute), (2, Stage::CopyIn)]);
    bench.end(2, Stage::CopyIn);
    bench.end(1, Stage::Compute);
    bench.await_begin([(1, Stage::CopyOut), (2, Stage::Compute)]);
    // Only the copy of the third batch could begin, and it would begin at once.
    bench.assert_nothing_else_began();
    bench.end(1, Stage::CopyOut);
    assert_eq!(bench.answer(), (1, Ok(())));
    bench.await_begin([(3, Stage::CopyIn)]);
    bench.end(2, Stage::Compute);
    bench.end(2, Stage::CopyOut);
    bench.end_all(3);
    assert_eq!(bench.answer(), (2, Ok(())));
    assert_eq!(bench.answer(), (3, Ok(())));
}

#[test]
fn without_streams_a_batch_begins_when_the_one_before_it_has_ended() {
    let mut bench = TestBench::new(false, 2);
    bench.push(1);
    bench.push(2);
    for number in [1, 2] {
        for stage in [Stage::CopyIn, Stage::Compute, Stage::CopyOut] {
            bench.await_begin([(number, stage)]);
            bench.assert_nothing_else_began();
            bench.end(number, stage);
        }
        assert_eq!(bench.answer(), (number, Ok(())));
    }
}

#[test]
fn short_batches_are_computed_where_they_are_received_one_after_the_other() {
    let mut bench = TestBench::new(false, 2);
    // It is not known how long the first takes.
    bench.receive(1).join().unwrap();
    bench.end_all(1);
    assert_eq!(bench.answer(), (1, Ok(())));
    bench.await_begin([(1, Stage::CopyIn), (1, Stage::Compute), (1, Stage::CopyOut)]);
    let receiving = bench.receive(2);
    bench.await_begin([(2, Stage::CopyIn)]);
    bench.receive(3).join().unwrap();
    bench.push(4);
    bench.assert_nothing_else_began();
    assert!(!receiving.is_finished());
    for number in [2, 3, 4] {
        bench.end_all(number);
        assert_eq!(bench.answer(), (number, Ok(())));
    }
    receiving.join().unwrap();
}

#[test]
fn a_batch_computed_where_it_is_received_is_not_answered_before_the_one_before_it() {
    let mut bench = TestBench::after_a_short_batch();
    let open = bench.push_gated(2);
    bench.end_all(2);
    bench.await_begin([
        (1, Stage::CopyIn),
        (1, Stage::Compute),
        (1, Stage::CopyOut),
        (2, Stage::CopyIn),
        (2, Stage::Compute),
        (2, Stage::CopyOut),
    ]);
    let receiving = bench.receive(3);
    bench.end_all(3);
    let early = bench.answers.recv_timeout(Duration::from_millis(50));
    assert_eq!(early, Err(mpsc::RecvTimeoutError::Timeout));
    open.send(()).unwrap();
    for number in [2, 3] {
        assert_eq!(bench.answer(), (number, Ok(())));
    }
    receiving.join().unwrap();
}

#[test]
fn a_device_that_fails_where_a_batch_is_received_ends_the_pipeline() {
    let mut bench = TestBench::after_a_short_batch();
    let receiving = bench.receive(2);
    let failed = ExecutionError::DeviceFailed("an illegal access".to_owned());
    bench.end_with(2, Stage::CopyIn, Err(failed));
    receiving.join().unwrap();
    let DeviceFailed(reason) = bench.ended().unwrap_err();
    assert_eq!(reason, "an illegal access");
}

#[test]
fn a_failure_in_any_stage_affects_that_batch_only_and_keeps_its_place() {
    for streams in [true, false] {
        for stage in [Stage::CopyIn, Stage::Compute, Stage::CopyOut] {
            for error in [
                ExecutionError::ModuleThrew(String::new()),
                ExecutionError::OutOfMemory(String::new()),
            ] {
                let mut bench = TestBench::new(streams, 2);
                for number in 1..=3 {
                    bench.push(number);
                }
                bench.end_all(1);
                for earlier in [Stage::CopyIn, Stage::Compute, Stage::CopyOut] {
                    let outcome = if earlier == stage {
                        Err(error.clone())
                    } else {
                        Ok(())
                    };
                    bench.end_with(2, earlier, outcome);
                }
                bench.end_all(3);
                let answers = [bench.answer(), bench.answer(), bench.answer()];
                assert_eq!(answers, [(1, Ok(())), (2, Err(error)), (3, Ok(()))]);
            }
        }
    }
}

#[test]
fn accepted_batches_are_answered_after_the_close() {
    for streams in [true, false] {
        let mut bench = TestBench::new(streams, 2);
        for number in 1..=4 {
            bench.push(number);
        }
        bench.await_begin([(1, Stage::CopyIn)]);
        bench.pipeline.close();
        for number in 1..=4 {
            bench.end_all(number);
        }
        for number in 1..=4 {
            assert_eq!(bench.answer(), (number, Ok(())));
        }
        assert!(bench.ended().is_ok());
    }
}

#[test]
fn a_batch_that_is_no_longer_wanted_is_not_computed() {
    let mut bench = TestBench::new(true, 1);
    bench.push(1);
    bench.await_begin([(1, Stage::CopyIn)]);
    bench.push_with(2, false);
    bench.push(3);
    bench.end_all(1);
    bench.end_all(3);
    bench.await_begin([(1, Stage::Compute), (1, Stage::CopyOut), (3, Stage::CopyIn)]);
    assert_eq!(bench.answer(), (1, Ok(())));
    assert_eq!(bench.answer(), (3, Ok(())));
}

#[test]
fn a_failed_device_ends_the_pipeline_and_nothing_in_flight_is_answered() {
    for streams in [true, false] {
        let mut bench = TestBench::new(streams, 2);
        for number in 1..=3 {
            bench.push(number);
        }
        for number in 1..=3 {
            bench.end(number, Stage::CopyIn);
        }
        let failed = ExecutionError::DeviceFailed("an illegal access".to_owned());
        // The third batch may have begun when the failure of the first is known.
        for number in 1..=3 {
            bench.end_with(number, Stage::Compute, Err(failed.clone()));
        }
        let DeviceFailed(reason) = bench.ended().unwrap_err();
        assert_eq!(reason, "an illegal access");
        // Batches that come later are not answered, either.
        bench.push(4);
        drop(bench.answer);
        assert_eq!(bench.answers.try_iter().count(), 0);
    }
}

#[test]
fn the_watch_answers_a_hung_batch_and_all_behind_it() {
    let mut bench = TestBench::new(true, 2);
    for number in 1..=3 {
        bench.push(number);
    }
    bench.end(1, Stage::CopyIn);
    bench.end(2, Stage::CopyIn);
    bench.await_begin([(1, Stage::CopyIn), (1, Stage::Compute), (2, Stage::CopyIn)]);
    let reason = bench.pipeline.watch(Duration::from_millis(1));
    assert_eq!(reason, "a batch of 1 was still running after 1 ms");
    let hung = ExecutionError::TimedOut(reason);
    assert_eq!(bench.answer(), (1, Err(hung)));
    let behind = || Err(behind_a_hung_batch());
    assert_eq!(bench.answer(), (2, behind()));
    assert_eq!(bench.answer(), (3, behind()));
    bench.push(4);
    assert_eq!(bench.answer(), (4, behind()));
}
