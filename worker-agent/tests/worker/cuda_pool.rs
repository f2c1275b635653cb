//! Weights that leave a CUDA device and come back, tested with the stand-in for the CUDA runtime. It ends the process if anything touches memory that is not
//! behind its addresses any more, and copies in any order that no event forbids.

use packhorse_cluster::ByteCount;
use packhorse_wire::{ToGateway, ToWorker};
use packhorse_worker_agent::handoff::{PipelineSettings, PoolTask, ServeTask, exit_code};

use crate::{
    cuda::{Node, every_way, task_of},
    gateway::{Link, Tensor},
    parking::report_after,
    pool::{named, task},
    process::{program, tensor},
};

const MIB: u64 = 1 << 20;
/// The limit of a pool with this much for weights and batches: the context is not counted by anybody, and is left free.
const fn limit(bytes: u64) -> u64 {
    (512 << 20) + bytes
}

fn pool_task(memory: u64, pipeline: PipelineSettings) -> PoolTask {
    PoolTask {
        memory_limit: Some(ByteCount::new(limit(memory))),
        cuda_device: Some(0),
        pipeline,
        ..task(60_000)
    }
}

/// Returns the task of a module that multiplies rows of three by its weights.
fn member(module: &str, number: u32, pipeline: PipelineSettings) -> ServeTask {
    let (x, y) = (tensor("x", "FP32", &[-1, 3]), tensor("y", "FP32", &[-1, 3]));
    let mut task = task_of(module, program(4, vec![x], vec![y]), pipeline);
    task.execution.parks = true;
    named(task, number)
}

fn rows(id: u16, rows: u16) -> Tensor {
    let values = (0..rows * 3).map(|i| f32::from(id) * 16.0 + f32::from(i));
    Tensor::fp32(&[rows.into(), 3], &values.collect::<Vec<_>>())
}

/// Returns the answer of `Scaled` with this factor.
fn scaled(id: u16, rows: u16, factor: u8) -> Tensor {
    let values = (0..rows * 3).map(|i| {
        let i = f32::from(i);
        (f32::from(id) * 16.0 + i) * (i + f32::from(factor))
    });
    Tensor::fp32(&[rows.into(), 3], &values.collect::<Vec<_>>())
}

/// Sends a batch, and returns the answer, past reports on the weights.
fn ask(link: &mut Link, id: u16, count: u16) -> Tensor {
    link.send(id.into(), count.into(), &[rows(id, count)]);
    loop {
        match link.message().expect("an answer") {
            ToGateway::Weights(_) => {}
            ToGateway::Result(header) => return link.outputs_of(&header).remove(0),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn weights_leave_a_device_and_come_back_whatever_the_pipeline() {
    for (seed, pipeline) in (1..).zip(every_way()) {
        let node = Node::new(&[("CUDA_FAKE_SEED", &format!("{seed}"))]);
        let mut pool = node.pool(&pool_task(400 * MIB, pipeline));
        let task = member("Scaled1", 1, pipeline);
        pool.begin(&task);
        let (mut link, first) = pool.connect_deciding(&task);
        assert!(first.is_resident(), "{pipeline:?} {first:?}");
        assert!(
            (6 * MIB..=10 * MIB).contains(&first.bytes),
            "6 MB in chunks: {first:?}\n{}",
            std::fs::read_to_string(pool.worker.handoff().log_path()).unwrap()
        );
        for (round, count) in (0..12).zip([1, 2, 3, 4].into_iter().cycle()) {
            link.send_message(&ToWorker::Unload(None));
            let unloaded = report_after(&mut link, 2 * round + 1);
            assert!(!unloaded.is_resident(), "{pipeline:?} {unloaded:?}");
            let since = node.log(0).len();
            link.send_message(&ToWorker::Load);
            assert!(report_after(&mut link, 2 * round + 2).is_resident());
            let loading = node.log(since);
            let copied = { loading.iter() }.filter(|line| line.starts_with("copy-in "));
            assert!(copied.count() >= 1, "{loading:?}");
            let kept = !loading.iter().any(|line| line.starts_with("create"));
            assert!(kept, "the memory is that of before: {loading:?}");
            let id = u16::try_from(round).unwrap();
            let answer = ask(&mut link, id, count);
            assert_eq!(answer, scaled(id, count, 1), "{pipeline:?} seed {seed}");
            // Recorded runs stay valid, because the addresses do.
            let log = node.log(since);
            let replayed = log.iter().any(|line| line.starts_with("replay"));
            assert_eq!(replayed, pipeline.graphs);
        }
        // A batch that comes while they are away brings them back.
        link.send_message(&ToWorker::Unload(None));
        assert_eq!(ask(&mut link, 99, 3), scaled(99, 3, 1));
    }
}

#[test]
fn models_of_a_device_with_room_for_one_take_the_room_from_each_other() {
    let pipeline = PipelineSettings {
        in_flight: 2,
        streams: true,
        graphs: true,
    };
    let node = Node::new(&[]);
    // Two of the three models have room beside the memory of batches.
    let memory = 24 * MIB;
    let mut pool = node.pool(&pool_task(memory, pipeline));
    let tasks: Vec<ServeTask> = [(1, "Scaled1"), (2, "Scaled2"), (3, "Scaled3")]
        .map(|(number, module)| member(module, number, pipeline))
        .into();
    for task in &tasks {
        pool.begin(task);
    }
    let mut links: Vec<Link> = { tasks.iter() }
        .map(|task| pool.connect_deciding(task).0)
        .collect();
    let loaded = node.log(0).len();
    for round in 0..20_u16 {
        for (link, factor) in links.iter_mut().zip(1..) {
            let (id, count) = (round * 4 + u16::from(factor), round % 4 + 1);
            assert_eq!(ask(link, id, count), scaled(id, count, factor));
        }
    }
    let (mut chunks, mut most) = (Vec::new(), 0);
    for (number, line) in node.log(0).into_iter().enumerate() {
        match line.split_once(' ') {
            Some(("create", bytes)) => chunks.push(bytes.parse::<u64>().unwrap()),
            None if line == "release" => drop(chunks.pop()),
            _ => {}
        }
        // A program takes more while it is loaded.
        if number >= loaded {
            most = most.max(chunks.iter().sum());
        }
    }
    println!("at most {} MiB for weights", most / MIB);
    assert!(most <= memory, "{most}");
    let unmapped = { node.log(loaded).into_iter() }.filter(|line| line.starts_with("unmap"));
    assert!(unmapped.count() >= 20, "they take turns");
}

#[test]
fn a_program_that_may_write_to_its_weights_keeps_them_on_a_device() {
    let pipeline = PipelineSettings::default();
    let node = Node::new(&[]);
    let mut pool = node.pool(&pool_task(400 * MIB, pipeline));
    let task = member("Ageing", 1, pipeline);
    pool.begin(&task);
    let (mut link, first) = pool.connect_deciding(&task);
    assert_eq!(first.bytes, 0, "{first:?}");
    let before = ask(&mut link, 1, 1);
    assert_ne!(ask(&mut link, 2, 3), ask(&mut link, 2, 3), "it changes");
    let changed = ask(&mut link, 1, 1);
    assert_ne!(before, changed);
    link.send_message(&ToWorker::Unload(None));
    assert!(report_after(&mut link, 1).is_resident());
    assert_eq!(ask(&mut link, 1, 1), changed);
}

#[test]
fn a_member_may_end_while_another_is_loaded() {
    let pipeline = PipelineSettings {
        graphs: true,
        ..PipelineSettings::default()
    };
    let node = Node::new(&[]);
    let mut pool = node.pool(&pool_task(400 * MIB, pipeline));
    let stays = member("Scaled1", 1, pipeline);
    pool.begin(&stays);
    let (mut link, _) = pool.connect_deciding(&stays);
    let mut before: Option<ServeTask> = None;
    for number in 2..10 {
        let task = member(
            ["Scaled2", "Scaled3"][number as usize % 2],
            number,
            pipeline,
        );
        pool.begin(&task);
        if let Some(before) = before.replace(task.clone()) {
            pool.end(&before);
        }
        let (mut of_member, first) = pool.connect_deciding(&task);
        assert!(first.bytes > 0);
        let factor = if number % 2 == 0 { 2 } else { 3 };
        assert_eq!(ask(&mut of_member, 5, 2), scaled(5, 2, factor));
        assert_eq!(ask(&mut link, 7, 1), scaled(7, 1, 1));
    }
}

#[test]
fn a_device_that_fails_while_weights_are_away_ends_the_pool() {
    let pipeline = PipelineSettings::default();
    let node = Node::new(&[]);
    let mut pool = node.pool(&pool_task(400 * MIB, pipeline));
    let task = member("Scaled1", 1, pipeline);
    pool.begin(&task);
    let (mut link, _) = pool.connect_deciding(&task);
    link.send_message(&ToWorker::Unload(None));
    assert!(!report_after(&mut link, 1).is_resident());
    node.break_device();
    link.send(1, 1, &[rows(1, 1)]);
    while link.message().is_some() {}
    assert_eq!(pool.worker.exit_code(), Some(i32::from(exit_code::FAILED)));
}
