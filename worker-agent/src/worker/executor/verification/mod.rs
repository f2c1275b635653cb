//! The comparison of a program's answers, as a worker runs it, with those of the program as it is in its file, which nobody has rewritten. Both
//! run through the same stages on the same device with the same random inputs. What is compared is the executor: it knows no device and no
//! libtorch, and neither does this folder.

mod comparison;
mod rows;
mod sample;
mod trial;

use std::time::Duration;

use packhorse_cluster::{Dim, Program};

use self::{
    comparison::Noise,
    sample::{Floats, Integers, Nudge, Sample},
};
use super::{
    error::ExecutionError,
    stages::{Executed, Executor},
};
use crate::clock::now;

pub(super) use self::{
    comparison::{Answer, Difference, Precision, compare, noise},
    trial::try_outputs,
};

/// The number of batches that are compared at most of a program with dimensions that vary, beside the batch.
const CASES: usize = 6;
/// The number of batches that are compared at most of another program.
const CASES_OF_ONE_SIZE: usize = 3;
/// The time after which no further batch is tried, by the number of those that the program has accepted. One is always tried, and a second, of
/// other sizes, unless the program is very slow.
const LIMITS: [Duration; 3] = [
    Duration::from_secs(20),
    Duration::from_secs(15),
    Duration::from_secs(2),
];
/// The bytes of answers after which no further batch is tried.
const MAX_ANSWERS: usize = 64 << 20;

/// The sizes of variable dimensions, by axis: those of the warm-up, then some that few numbers divide, then those of windows and small images.
const SIZES: [&[u64]; 6] = [&[16], &[21, 17, 19], &[7], &[28], &[32, 48], &[64]];

/// The seed of the batch with the examples of the inputs, which no other has.
const SEED_OF_EXAMPLES: u64 = u64::MAX - 1;

/// The answers of a program as it is in its file.
pub(super) struct Reference {
    cases: Vec<Case>,
    precision: Precision,
    not_compared: Option<NotCompared>,
}

/// A batch and its answer.
struct Case {
    sample: Sample,
    expected: Vec<Answer>,
    noise: Vec<Noise>,
}

/// The reason why the answers of a program cannot be compared.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum NotCompared {
    /// The program refuses all random inputs.
    #[error("the program refuses random inputs: {0}")]
    Refused(String),
    /// The program answers the same inputs differently.
    #[error("the program answers the same inputs differently")]
    Random,
    /// The answers tell nothing.
    #[error("the answers to random inputs are no numbers, or a rounding changes them too much")]
    NoNumbers,
    /// There was not enough memory to run the program as it is.
    #[error("there is not enough memory to run the program as it is: {0}")]
    OutOfMemory(String),
    /// The program cannot be run as it is in its file.
    #[error("the program does not run as it is: {0}")]
    NotStarted(String),
}

/// The inputs that may be tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum InputRange {
    /// Small integers, floats around 0, several sizes: a program that cannot take one throws.
    Wide,
    /// Sizes and integers of the warm-up, and floats between 0 and 1: a GPU on which an index is out of range computes nothing more in this process,
    /// and a program may take sizes and floats as indices, too.
    Careful,
}

impl Reference {
    /// Creates a reference without answers.
    pub(super) fn none(reason: NotCompared) -> Self {
        Self {
            cases: Vec::new(),
            precision: Precision::Full,
            not_compared: Some(reason),
        }
    }

    /// Runs a program as it is on random inputs, with batches of these numbers of rows in turn.
    ///
    /// # Errors
    /// If the device failed.
    pub(super) fn collect(
        executor: &dyn Executor,
        program: &Program,
        rows: &[u32],
        range: InputRange,
        precision: Precision,
    ) -> Result<Self, ExecutionError> {
        let mut reference = Self {
            cases: Vec::new(),
            precision,
            not_compared: None,
        };
        let cases = if varies(program) && range == InputRange::Wide {
            CASES
        } else {
            CASES_OF_ONE_SIZE
        };
        let start = now();
        let mut kept = 0;
        for sample in samples(program, rows, range) {
            let enough = reference.cases.len() >= cases || kept >= MAX_ANSWERS;
            if enough || reference.has_compared(sample) {
                continue;
            }
            if now() - start >= LIMITS[reference.cases.len().min(2)] {
                break;
            }
            match answer_twice(executor, program, sample)? {
                Ok(case) => {
                    kept += case.expected.iter().map(|a| a.bytes.len()).sum::<usize>();
                    reference.cases.push(case);
                }
                Err(NotCompared::Random) => {
                    // A program that is random once is so at other times, too.
                    return Ok(Self::none(NotCompared::Random));
                }
                Err(reason) => {
                    reference.not_compared.get_or_insert(reason);
                }
            }
        }
        if !reference.cases.is_empty() {
            reference.not_compared = None;
        }
        Ok(reference)
    }

    /// Returns true if there is an answer to a batch of these sizes and rows, which other integers were given: a sample whose integers are
    /// refused is followed by one with others.
    fn has_compared(&self, sample: Sample) -> bool {
        let of_seed = |case: &Case| case.sample.seed == sample.seed;
        self.cases.iter().any(of_seed)
    }

    /// Returns the number of batches that are compared.
    pub(super) fn compared(&self) -> u32 {
        self.cases.len() as u32
    }

    /// Returns the reason why nothing is compared; `None` if something is.
    pub(super) fn not_compared(&self) -> Option<&NotCompared> {
        self.not_compared.as_ref()
    }

    /// Runs the same inputs on another executor, and returns the first difference of its answers. A batch for which there is not enough memory
    /// says nothing.
    ///
    /// # Errors
    /// If the device failed.
    pub(super) fn difference(
        &self,
        executor: &dyn Executor,
        program: &Program,
    ) -> Result<Option<Difference>, ExecutionError> {
        for case in &self.cases {
            let found = match run(executor, program, case.sample, Nudge::None) {
                Ok(found) => found,
                Err(ExecutionError::OutOfMemory(_)) => continue,
                Err(ExecutionError::DeviceFailed(text)) => {
                    return Err(ExecutionError::DeviceFailed(text));
                }
                Err(error) => return Ok(Some(Difference::Threw(error.to_string()))),
            };
            if let Err(difference) = compare(&case.expected, &case.noise, &found, self.precision) {
                return Ok(Some(difference));
            }
        }
        Ok(None)
    }
}

/// The answer of a program to random inputs, as it was once.
pub(super) struct SampleAnswer {
    sample: Sample,
    answers: Vec<Answer>,
}

impl SampleAnswer {
    /// Runs a program on the first random inputs that it accepts; `None` if it accepts none, or answers the same inputs differently.
    ///
    /// # Errors
    /// If the device failed.
    pub(super) fn collect(
        executor: &dyn Executor,
        program: &Program,
    ) -> Result<Option<Self>, ExecutionError> {
        for sample in samples(program, &[1], InputRange::Wide) {
            match run(executor, program, sample, Nudge::None) {
                Ok(answers) => {
                    let answer = Self { sample, answers };
                    let is_steady = answer.is_repeated(executor, program)?;
                    return Ok(is_steady.then_some(answer));
                }
                Err(ExecutionError::DeviceFailed(text)) => {
                    return Err(ExecutionError::DeviceFailed(text));
                }
                Err(_) => {}
            }
        }
        Ok(None)
    }

    /// Returns true if the program answers the same inputs with the same bits.
    ///
    /// # Errors
    /// If the program fails.
    pub(super) fn is_repeated(
        &self,
        executor: &dyn Executor,
        program: &Program,
    ) -> Result<bool, ExecutionError> {
        Ok(run(executor, program, self.sample, Nudge::None)? == self.answers)
    }
}

/// Returns true if an input has a dimension that varies, beside the batch.
fn varies(program: &Program) -> bool {
    let batches = usize::from(program.batches());
    let mut inputs = program.inputs.iter();
    inputs.any(|spec| spec.shape.iter().skip(batches).any(|dim| *dim == Dim::Any))
}

/// Returns true if an input consists of integers or booleans.
fn has_integers(program: &Program) -> bool {
    program.inputs.iter().any(|spec| !spec.datatype.is_float())
}

/// Returns the random inputs to try, in this order. Those with the same seed are alternatives, of which the first that the program accepts counts.
fn samples(program: &Program, rows: &[u32], range: InputRange) -> Vec<Sample> {
    let limit = program.rows_limit();
    let rows = rows.iter().cycle().map(|rows| (*rows).clamp(1, limit));
    let small = [
        [Integers::Below(2), Integers::All(1), Integers::All(0)],
        [Integers::Below(100), Integers::Below(2), Integers::All(1)],
    ];
    let mut inputs = program.inputs.iter();
    // Half of the batches have the declared sizes: a program may take no others.
    let usual = inputs.any(|spec| spec.typical_shape.is_some());
    let mut all = Vec::new();
    if program.inputs.iter().any(|spec| spec.example.is_some()) {
        // What people say that requests are like comes first.
        all.push(Sample {
            seed: SEED_OF_EXAMPLES,
            rows: rows.clone().next().unwrap_or(1),
            sizes: SIZES[0],
            typical: true,
            examples: true,
            floats: Floats::Uniform,
            integers: Integers::All(1),
        });
    }
    for (seed, (rows, sizes)) in rows.zip(SIZES).enumerate() {
        let (sizes, floats, alternatives): (_, _, &[Integers]) = match range {
            InputRange::Wide if seed % 3 == 1 => (sizes, Floats::Uniform, &small[seed % 2]),
            InputRange::Wide => (sizes, Floats::Normal, &small[seed % 2]),
            InputRange::Careful => (
                SIZES[0],
                Floats::Uniform,
                &[Integers::All(1), Integers::All(0)],
            ),
        };
        let alternatives = if has_integers(program) {
            alternatives
        } else {
            &alternatives[..1]
        };
        for integers in alternatives {
            all.push(Sample {
                seed: seed as u64,
                rows,
                sizes,
                typical: range == InputRange::Careful || seed == 0 || usual && seed % 2 == 0,
                examples: false,
                floats,
                integers: *integers,
            });
        }
    }
    all
}

/// Runs a program on a sample and on the same one after a rounding.
///
/// # Errors
/// If the device failed.
fn answer_twice(
    executor: &dyn Executor,
    program: &Program,
    sample: Sample,
) -> Result<Result<Case, NotCompared>, ExecutionError> {
    let attempt = |nudge| match run(executor, program, sample, nudge) {
        Ok(answers) => Ok(Ok(answers)),
        Err(ExecutionError::DeviceFailed(text)) => Err(ExecutionError::DeviceFailed(text)),
        Err(ExecutionError::OutOfMemory(text)) => {
            executor.release_memory();
            Ok(Err(NotCompared::OutOfMemory(text)))
        }
        Err(error) => Ok(Err(NotCompared::Refused(error.to_string()))),
    };
    let expected = match attempt(Nudge::None)? {
        Ok(expected) => expected,
        Err(reason) => return Ok(Err(reason)),
    };
    let nudged = match attempt(Nudge::Rounding)? {
        Ok(nudged) => nudged,
        Err(reason) => return Ok(Err(reason)),
    };
    if let Some(noise) = noise(&expected, &nudged) {
        return Ok(Ok(Case {
            sample,
            expected,
            noise,
        }));
    }
    let again = match attempt(Nudge::None)? {
        Ok(again) => again,
        Err(reason) => return Ok(Err(reason)),
    };
    let is_same = compare(&expected, &[], &again, Precision::Full).is_ok();
    Ok(Err(if is_same {
        NotCompared::NoNumbers
    } else {
        NotCompared::Random
    }))
}

fn run(
    executor: &dyn Executor,
    program: &Program,
    sample: Sample,
    nudge: Nudge,
) -> Result<Vec<Answer>, ExecutionError> {
    let too_large = || ExecutionError::OutOfMemory("the inputs are too large".to_owned());
    let headers = sample.headers(program).ok_or_else(too_large)?;
    let mut batch = executor.prepare(&headers)?;
    sample.fill(&mut *batch, program, nudge);
    let Executed { outputs, .. } = batch.run()?;
    let answer = |output: super::stages::OutputTensor| Answer {
        bytes: (*output.bytes).as_ref().to_vec(),
        header: output.header,
    };
    Ok(outputs.into_iter().map(answer).collect())
}
