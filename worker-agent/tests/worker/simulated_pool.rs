//! Programs of a simulated device that share a process, and whose planned memory is more than the device has.

use std::time::{Duration, Instant};

use packhorse_cluster::{ByteCount, ProfileTable};
use packhorse_wire::{ToGateway, ToWorker, WeightsPlace};
use packhorse_worker_agent::handoff::{ExecutorChoice, PoolTask, ServeTask};

use crate::{
    gateway::{Link, Tensor},
    parking::report_after,
    pool::{PoolWorker, named, task},
    process::{Worker, execution, program, serve_task, tensor},
};

/// The memory of a batch of one row, and of the largest one.
const WEIGHTS: ByteCount = ByteCount::new(1200 << 20);
const WHOLE: ByteCount = ByteCount::new(1300 << 20);

/// Returns the tasks of models on one device.
fn models(count: u32) -> Vec<ServeTask> {
    let folder = tempfile::tempdir().unwrap().keep();
    let model = |number| {
        let (inputs, outputs) = (tensor("x", "FP32", &[-1, 3]), tensor("y", "FP32", &[-1, 1]));
        let (weights, whole) = (WEIGHTS.as_u64() >> 20, WHOLE.as_u64() >> 20);
        let rows =
            |name: &str| format!("{name},T4,1,,2,,{weights},,,\n{name},T4,4,,4,,{whole},,,\n");
        let simulated = ExecutorChoice::Simulated {
            device_kind: "T4".parse().unwrap(),
            profile_csv: format!(
                "{}\n{}",
                ProfileTable::CSV_HEADER,
                rows(&format!("m{number}"))
            ),
            compute_share: None,
            folder: folder.clone(),
        };
        let mut execution = execution(program(4, vec![inputs], vec![outputs]), simulated);
        execution.parks = true;
        named(serve_task(execution), number)
    };
    (1..=count).map(model).collect()
}

/// Starts the pool worker of a device with this memory.
fn pool(tasks: &[ServeTask], memory: ByteCount, warm_limit: Option<ByteCount>) -> PoolWorker {
    let ExecutorChoice::Simulated { folder, .. } = &tasks[0].execution.executor else {
        unreachable!("they are simulated");
    };
    let task = PoolTask {
        memory_limit: Some(memory),
        warm_limit,
        simulated: true,
        writes: vec![folder.clone()],
        ..task(60_000)
    };
    PoolWorker::of(Worker::pool(&task, &["--confine"]))
}

fn ask(link: &mut Link) {
    link.send(1, 1, &[Tensor::fp32(&[1, 3], &[0.0; 3])]);
    loop {
        match link.message().expect("an answer") {
            ToGateway::Weights(_) => {}
            ToGateway::Result(header) => {
                assert_eq!(link.outputs_of(&header).len(), 1);
                return;
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn weights_of_simulated_programs_come_within_the_memory_of_the_device_in_their_time() {
    let tasks = models(3);
    let memory = ByteCount::new(3000 << 20);
    let mut pool = pool(&tasks, memory, None);
    let mut links = Vec::new();
    for (task, place) in tasks.iter().zip([
        WeightsPlace::Resident,
        WeightsPlace::Resident,
        WeightsPlace::Warm,
    ]) {
        pool.begin(task);
        let (link, report) = pool.connect_deciding(task);
        assert_eq!((report.place, report.bytes), (place, WEIGHTS.as_u64()));
        let activations = WHOLE.saturating_sub(WEIGHTS);
        let for_weights = memory.saturating_sub(activations);
        assert_eq!(report.memory, for_weights.as_u64());
        // 1200 MiB at 12 GB/s, and at 2 GB/s.
        assert!(report.load > Duration::from_millis(100), "{report:?}");
        assert!(report.cold_load > report.load * 5, "{report:?}");
        links.push(link);
    }
    links[0].send_message(&ToWorker::Unload(Some(tasks[2].replica)));
    assert_eq!(report_after(&mut links[0], 1).place, WeightsPlace::Warm);
    let begin = Instant::now();
    links[2].send_message(&ToWorker::Load);
    let loaded = report_after(&mut links[2], 1);
    assert!(loaded.is_resident() && begin.elapsed() >= loaded.load);
    for link in &mut links {
        ask(link);
    }
}

#[test]
fn simulated_programs_without_room_in_memory_are_read_again() {
    let tasks = models(2);
    let mut pool = pool(&tasks, ByteCount::new(1400 << 20), Some(ByteCount::new(0)));
    let mut links = Vec::new();
    for (task, place) in tasks
        .iter()
        .zip([WeightsPlace::Resident, WeightsPlace::Cold])
    {
        pool.begin(task);
        let (link, report) = pool.connect_deciding(task);
        assert_eq!(report.place, place);
        links.push(link);
    }
    links[0].send_message(&ToWorker::Unload(Some(tasks[1].replica)));
    assert_eq!(report_after(&mut links[0], 1).place, WeightsPlace::Cold);
    links[1].send_message(&ToWorker::Load);
    assert_eq!(report_after(&mut links[1], 1).place, WeightsPlace::Resident);
    ask(&mut links[1]);
}
