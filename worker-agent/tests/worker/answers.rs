//! Programs that libtorch rewrites wrongly, or that cannot be compared, in a worker with the default settings.

use std::slice;

use packhorse_cluster::{Datatype, Dim, TypicalShapes, Verification};
use packhorse_worker_agent::handoff::{Optimize, ServeTask, WorkerReport};

use crate::{
    gateway::Tensor,
    process::{Worker, tensor},
    torch::{affine, connect, one_to_one, task},
};

fn verification(worker: &Worker) -> Option<Verification> {
    worker.wait_for(|phase| match phase {
        WorkerReport::Ready { verification, .. } => Some(verification),
        WorkerReport::Failed { reason, .. } => panic!("{reason}"),
        _ => None,
    })
}

/// Returns a task with one input and one output of 32-bit numbers with these dimensions.
fn fp32_task(module: &str, x: &[i64], y: &[i64]) -> ServeTask {
    task(
        module,
        one_to_one(tensor("x", "FP32", x), tensor("y", "FP32", y)),
    )
}

/// Sends one row of ones in this shape, and returns the answer.
fn answer_to_ones(worker: &Worker, task: &ServeTask, shape: &[i64]) -> Tensor {
    let count = shape.iter().product::<i64>();
    let ones = Tensor::fp32(shape, &vec![1.0; usize::try_from(count).unwrap()]);
    let mut link = connect(worker, task);
    link.send(1, 1, slice::from_ref(&ones));
    link.result().1.remove(0)
}

#[test]
fn a_mean_of_a_window_that_reaches_beyond_the_input_is_that_of_what_is_there() {
    for (module, shape, answer) in [
        ("CeilPooled2d", &[1, 1, 3, 3][..], &[1, 1, 2, 2][..]),
        ("CeilPooled3d", &[1, 1, 3, 3, 3], &[1, 1, 2, 2, 2]),
    ] {
        let dims = |shape: &[i64]| -> Vec<i64> {
            let rest = shape[1..].iter().copied();
            std::iter::once(-1).chain(rest).collect()
        };
        let task = fp32_task(module, &dims(shape), &dims(answer));
        let worker = Worker::serve(&task);
        let count = answer.iter().product::<i64>();
        let ones = vec![1.0; usize::try_from(count).unwrap()];
        assert_eq!(
            answer_to_ones(&worker, &task, shape),
            Tensor::fp32(answer, &ones)
        );
        let verification = verification(&worker).unwrap();
        assert!(verification.compared > 0, "{verification:?}");
        assert_eq!(verification.dropped, []);
    }
}

#[test]
fn the_second_operand_of_a_sum_is_multiplied_although_the_first_is_used_again() {
    let shape = [-1, 1, 2, 2];
    let task = fp32_task("AddedTwice", &shape, &shape);
    let worker = Worker::serve(&task);
    let shape = [1, 1, 2, 2];
    let answer = answer_to_ones(&worker, &task, &shape);
    assert_eq!(answer, Tensor::fp32(&shape, &[5.0; 4]));
}

#[test]
fn a_convolution_reads_what_was_written_to_its_input_before() {
    let shape = [-1, 1, 2, 2];
    let task = fp32_task("Overwritten", &shape, &shape);
    let worker = Worker::serve(&task);
    let shape = [1, 1, 2, 2];
    let answer = answer_to_ones(&worker, &task, &shape);
    assert_eq!(answer, Tensor::fp32(&shape, &[6.0, 6.0, 2.0, 2.0]));
    assert_eq!(verification(&worker).unwrap().dropped, []);
}

#[test]
fn a_normalization_behind_a_linear_layer_is_that_of_the_second_dimension() {
    let shape = [-1, 3, 3];
    let task = fp32_task("NormedRows", &shape, &shape);
    let worker = Worker::serve(&task);
    let shape = [1, 3, 3];
    let answer = answer_to_ones(&worker, &task, &shape);
    let rows = [1.0, 1.0, 1.0, 0.0, 0.0, 0.0, -1.0, -1.0, -1.0];
    assert_eq!(answer, Tensor::fp32(&shape, &rows));
    assert_eq!(verification(&worker).unwrap().dropped, []);
}

#[test]
fn means_of_sizes_that_their_number_does_not_divide_are_answered() {
    let task = fp32_task("Divided", &[-1, 1, -1, -1], &[-1, 1, 4, 4]);
    let worker = Worker::serve(&task);
    let answer = answer_to_ones(&worker, &task, &[1, 1, 18, 15]);
    assert_eq!(answer, Tensor::fp32(&[1, 1, 4, 4], &[1.0; 16]));
}

#[test]
fn a_program_that_only_the_example_suits_is_tried_and_compared_with_it() {
    let (mut ids, y) = (
        tensor("ids", "INT64", &[-1, -1]),
        tensor("y", "FP32", &[-1, 1]),
    );
    let typical = [-1, 4].map(|dim| Dim::try_from(dim).unwrap());
    ids.typical_shape = Some(TypicalShapes::one(typical.to_vec()));
    let task = task("Marked", one_to_one(ids.clone(), y.clone()));
    let (reason, permanent) = Worker::serve(&task).failure();
    assert!(permanent && reason.contains("begins with 101"), "{reason}");
    assert!(
        reason.ends_with("random numbers: declare example of its inputs if it takes others"),
        "{reason}"
    );

    ids.example = Some(vec![101.0, 7.0, 30.0, 102.0]);
    let task = self::task("Marked", one_to_one(ids, y));
    let worker = Worker::serve(&task);
    let verification = verification(&worker).unwrap();
    assert_eq!(
        (verification.compared, &verification.dropped[..]),
        (1, &[][..])
    );
    let mut link = connect(&worker, &task);
    let ids: Vec<u8> = [101_i64, 9, 102]
        .iter()
        .flat_map(|id| id.to_le_bytes())
        .collect();
    link.send(1, 1, &[Tensor::new(Datatype::Int64, &[1, 3], ids)]);
    let mean = (101.0 + 9.0 + 102.0) / 3.0;
    assert_eq!(link.result().1, [Tensor::fp32(&[1, 1], &[mean])]);
}

#[test]
fn a_program_that_answers_by_chance_is_served_and_not_compared() {
    let task = fp32_task("Chance", &[-1, 3], &[-1, 3]);
    let worker = Worker::serve(&task);
    let verification = verification(&worker).unwrap();
    assert_eq!((verification.compared, verification.dropped.len()), (0, 0));
    let reason = verification.not_compared.unwrap();
    assert_eq!(reason, "the program answers the same inputs differently");
}

#[test]
fn a_program_that_refuses_random_inputs_is_served_and_not_compared() {
    let task = fp32_task("Strict", &[-1, 3], &[-1, 3]);
    let worker = Worker::serve(&task);
    let verification = verification(&worker).unwrap();
    assert_eq!((verification.compared, verification.dropped.len()), (0, 0));
    let reason = verification.not_compared.unwrap();
    assert!(
        reason.starts_with("the program refuses random inputs: ") && reason.contains("only zeros"),
        "{reason}"
    );
}

#[test]
fn a_program_that_forks_answers_what_its_tasks_compute() {
    let task = fp32_task("Forked", &[-1, 3], &[-1, 3]);
    let worker = Worker::serve(&task);
    let answer = answer_to_ones(&worker, &task, &[1, 3]);
    assert_eq!(answer, Tensor::fp32(&[1, 3], &[6.0; 3]));
}

#[test]
fn nothing_is_compared_if_the_optimization_is_trusted_or_off() {
    for optimize in [Optimize::Trust, Optimize::Off] {
        let mut task = affine();
        task.execution.optimize = optimize;
        let worker = Worker::serve(&task);
        assert_eq!(verification(&worker), None, "{optimize:?}");
    }
    assert!(verification(&Worker::serve(&affine())).unwrap().compared > 0);
}
