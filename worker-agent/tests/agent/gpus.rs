//! The agent on a node with GPUs, tested without one: NVML and the MPS control program are stand-ins, and the workers only write down their
//! environment.

use std::{collections::BTreeMap, fs, path::Path, process::Command};

use packhorse_api::agent::{GpuProcess, GpuStatus};
use packhorse_cluster::{ByteCount, ComputeShare, ReplicaState, ReplicaStatus, WantedReplica};

use packhorse_worker_agent::handoff::{Handoff, PoolTask};

use crate::{
    common::{Agent, FakeGateway, FakeState, Home, replica, signal},
    worker_user,
};

const V100: &str = "GPU-5d1bd0b0-0e4b-4a4d-a0ea-000000000001";
const THREE_SLICES: &str = "MIG-5d1bd0b0-0e4b-4a4d-a0ea-000000000003";
const ONE_SLICE: &str = "MIG-5d1bd0b0-0e4b-4a4d-a0ea-000000000004";
/// The most clients that MPS allows.
const CLIENTS: usize = 48;

/// Starts an agent with the GPUs of the stand-in for NVML.
fn agent(home: &Home, gateway: &FakeGateway) -> Agent {
    agent_with(home, gateway, &[])
}

fn agent_with(home: &Home, gateway: &FakeGateway, flags: &[&str]) -> Agent {
    let stand_ins = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/stand-ins");
    let built = Command::new(stand_ins.join("build.sh"))
        .arg("nvml")
        .arg(home.path(""))
        .status();
    assert!(built.unwrap().success(), "the stand-in for NVML is built");
    // The worker waits on a pipe to which nothing is written until it gets a signal.
    let worker = home.script(
        "worker",
        "[ \"$1\" = --version ] && exit 0\nenv >\"$3/environment.new\"\nmv \"$3/environment.new\" \"$3/environment\"\nmkfifo \"$3/hold\"\nread -r _ <\"$3/hold\"\n",
    );
    let child = home
        .agent_command(gateway.address)
        .args(["--devices", "nvidia", "--stop-workers-on-exit"])
        .args(flags)
        .args([Path::new("--mps-control"), &stand_ins.join("mps-control")])
        .args([Path::new("--worker"), &worker])
        .env("LD_LIBRARY_PATH", home.path(""))
        .spawn()
        .unwrap();
    Agent(child)
}

fn on(device: &str, id: &str) -> WantedReplica {
    WantedReplica {
        device: device.to_owned(),
        ..replica(id)
    }
}

fn gpu<'b>(state: &'b FakeState, device: &str) -> Option<&'b GpuStatus> {
    let mut gpus = state.status.as_ref()?.gpus.iter();
    gpus.find(|gpu| gpu.device == device)
}

#[tokio::test]
async fn gpus_and_their_instances_are_devices_with_readings() {
    let (gateway, home) = (FakeGateway::start().await, Home::new());
    let _agent = agent(&home, &gateway);
    let status = gateway
        .until("a status", |state| state.status.clone())
        .await;

    let devices = gateway.state.borrow().leases[0].devices.clone();
    let seen: Vec<(&str, &str, u64, Option<u32>)> = devices
        .iter()
        .map(|device| {
            (
                device.name.as_str(),
                device.kind.as_str(),
                device.memory_bytes.as_u64() >> 20,
                device.multiprocessors,
            )
        })
        .collect();
    let expected = [
        (V100, "V100-SXM2-16GB", 16_384, Some(80)),
        // Neither the GPU that is partitioned nor a destroyed instance is a device.
        (
            THREE_SLICES,
            "NVIDIA-A100-SXM4-40GB-MIG-3g.20gb",
            19_968,
            Some(42),
        ),
        (ONE_SLICE, "NVIDIA-A100-SXM4-40GB-MIG-1g", 4_864, Some(14)),
    ];
    assert_eq!(seen, expected);

    let whole = GpuStatus {
        device: V100.to_owned(),
        mps: true,
        mps_reason: None,
        utilization_pct: Some(83.0),
        memory_total_bytes: Some(16 << 30),
        memory_used_bytes: Some(3 << 30),
        power_watts: Some(187.25),
        power_limit_watts: Some(300.0),
        energy_joules: Some(123_456.789),
        temperature_celsius: Some(61),
        sm_clock_mhz: Some(1380),
        memory_clock_mhz: Some(877),
        throttle_reasons: vec!["power cap".to_owned()],
        ecc_corrected_errors: Some(3),
        ecc_uncorrected_errors: Some(0),
        processes: vec![GpuProcess {
            pid: 4711,
            memory_bytes: Some(1 << 30),
        }],
    };
    assert_eq!(status.gpus[0], whole);
    // Memory is the instance's, temperature and clocks are the board's, and the board's power is not counted twice.
    let instance = GpuStatus {
        device: ONE_SLICE.to_owned(),
        mps: true,
        memory_total_bytes: Some(4864 << 20),
        memory_used_bytes: Some(1 << 20),
        temperature_celsius: Some(61),
        sm_clock_mhz: Some(1380),
        memory_clock_mhz: Some(877),
        throttle_reasons: vec!["power cap".to_owned()],
        ..GpuStatus::default()
    };
    assert_eq!(status.gpus[2], instance);
}

#[tokio::test]
async fn models_of_a_gpu_share_a_process_where_they_may() {
    let (gateway, home) = (FakeGateway::start().await, Home::new());
    let _agent = agent_with(&home, &gateway, &["--gpu-pools"]);
    gateway.want(
        vec![WantedReplica {
            pooled: true,
            ..on(V100, "1-0")
        }],
        vec![],
    );
    let pool = home.path("state/pools").join(V100);
    let task = gateway
        .until("the pool worker", |_| {
            let environment = fs::read_to_string(pool.join("environment")).ok()?;
            let device = format!("CUDA_VISIBLE_DEVICES={V100}");
            assert!(environment.lines().any(|line| line == device));
            Some(Handoff::new(&pool).read_task::<PoolTask>().unwrap())
        })
        .await;
    assert_eq!(task.cuda_device, Some(0));
    assert_eq!(task.memory_limit, Some(ByteCount::new(16 << 30)));
    let devices = gateway.state.borrow().leases[0].devices.clone();
    let pool = devices[0].pool.unwrap();
    assert!(pool.process > ByteCount::ZERO, "it has a context");
}

#[tokio::test]
async fn a_worker_is_confined_to_its_gpu_and_what_it_was_given_of_it() {
    let (gateway, home) = (FakeGateway::start().await, Home::new());
    let _agent = agent(&home, &gateway);
    let confined = WantedReplica {
        compute_share_pct: Some(ComputeShare::new(25.0).unwrap()),
        memory_bytes: Some(ByteCount::new(4 << 30)),
        ..on(V100, "1-0")
    };
    gateway.want(vec![confined, on(ONE_SLICE, "2-0")], vec![]);
    let environment = |id: &str| {
        let path = home.path("state/replicas").join(id).join("environment");
        let text = fs::read_to_string(path).ok()?;
        let pairs = text.lines().filter_map(|line| line.split_once('='));
        let of_cuda = pairs.filter(|(name, _)| name.starts_with("CUDA_"));
        let owned = of_cuda.map(|(name, value)| (name.to_owned(), value.to_owned()));
        Some(owned.collect::<BTreeMap<String, String>>())
    };
    let both = || Some((environment("1-0")?, environment("2-0")?));
    // The agent reports its status several times a second.
    let (first, second) = gateway.until("both workers", |_| both()).await;
    let value = |name: &str| first.get(name).map(String::as_str);
    assert_eq!(value("CUDA_VISIBLE_DEVICES"), Some(V100));
    assert_eq!(value("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"), Some("25"));
    // The limit is the plan's memory, a quarter more, and one GiB.
    assert_eq!(value("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"), Some("0=6144M"));
    assert_eq!(second["CUDA_VISIBLE_DEVICES"], ONE_SLICE);
    assert!(!second.contains_key("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"));
    let pipe = "CUDA_MPS_PIPE_DIRECTORY";
    assert_ne!(first[pipe], second[pipe], "a daemon per device");
    let sees = |environment: &BTreeMap<String, String>| {
        let seen = fs::read_to_string(Path::new(&environment[pipe]).join("device"));
        seen.unwrap().trim().to_owned()
    };
    assert_eq!([sees(&first), sees(&second)], [V100, ONE_SLICE]);
}

#[tokio::test]
async fn a_gpu_has_as_many_workers_as_mps_allows_and_the_next_when_one_has_gone() {
    let (gateway, home) = (FakeGateway::start().await, Home::new());
    let _agent = agent(&home, &gateway);
    let ids: Vec<String> = (0..=CLIENTS).map(|i| format!("{}-0", i + 1)).collect();
    let mut wanted: Vec<WantedReplica> = ids.iter().map(|id| on(V100, id)).collect();
    let running = |status: &&ReplicaStatus| status.pid.is_some();
    gateway.want(wanted.clone(), vec![]);
    let left_out = gateway
        .until("all but one", |state| {
            let replicas = &state.status.as_ref()?.replicas;
            let count = replicas.iter().filter(running).count();
            let left_out = replicas.iter().find(|replica| replica.reason.is_some())?;
            (count == CLIENTS).then(|| left_out.clone())
        })
        .await;
    assert_eq!(left_out.state, ReplicaState::BackingOff);
    assert_eq!(
        left_out.reason.as_deref(),
        Some("the device already has 48 workers, the most that MPS allows")
    );
    assert!(gpu(&gateway.state.borrow(), V100).unwrap().mps);

    let last = wanted.iter().position(|replica| replica.id == left_out.id);
    let gone = wanted.remove((last.unwrap() + 1) % wanted.len());
    gateway.want(wanted, vec![]);
    gateway
        .until("the one left out, for the one that has gone", |state| {
            let replicas = &state.status.as_ref()?.replicas;
            let all = replicas.iter().all(|replica| replica.pid.is_some());
            let gone = replicas.iter().all(|replica| replica.id != gone.id);
            (all && gone && replicas.len() == CLIENTS).then_some(())
        })
        .await;
}

#[tokio::test]
async fn where_a_daemon_dies_all_workers_of_its_gpu_start_again_and_no_others() {
    let (gateway, home) = (FakeGateway::start().await, Home::new());
    let _agent = agent(&home, &gateway);
    let wanted = vec![on(V100, "1-0"), on(V100, "1-1"), on(ONE_SLICE, "2-0")];
    gateway.want(wanted, vec![]);
    let all_run = |state: &FakeState| {
        let replicas = &state.status.as_ref()?.replicas;
        let pids: BTreeMap<String, u32> = replicas
            .iter()
            .filter_map(|replica| Some((replica.id.to_string(), replica.pid?)))
            .collect();
        (pids.len() == 3).then_some(pids)
    };
    let before = gateway.until("three workers", all_run).await;
    let daemons = home.mps_daemons();
    let of_v100 = daemons.into_iter().find(|daemon| daemon.device == V100);
    signal(of_v100.unwrap().pid, "KILL");
    let after = gateway
        .until("other workers on the GPU", |state| {
            let pids = all_run(state)?;
            let changed = |id: &str| pids[id] != before[id];
            (changed("1-0") && changed("1-1")).then_some(pids)
        })
        .await;
    assert_eq!(after["2-0"], before["2-0"]);
    gateway
        .until("MPS again", |state| gpu(state, V100)?.mps.then_some(()))
        .await;
}

#[tokio::test]
async fn the_mps_daemon_of_a_gpu_has_the_user_of_its_clients_and_one_of_another_user_is_replaced() {
    let Some((home, flags)) = worker_user::home() else {
        return;
    };
    let gateway = FakeGateway::start().await;
    let of_v100 = || {
        let mut daemons = home.mps_daemons().into_iter();
        daemons.find(|daemon| daemon.device == V100)
    };
    // Of an agent before, whose workers were its own user's.
    let mut first = agent_with(&home, &gateway, &["--worker-user", "root"]);
    gateway
        .until("MPS", |state| gpu(state, V100)?.mps.then_some(()))
        .await;
    let before = of_v100().unwrap().pid;
    assert_eq!(worker_user::identity(before)[0], "0");
    first.kill();

    gateway.state.send_modify(|state| state.status = None);
    let _agent = agent_with(&home, &gateway, &[&flags[0], &flags[1]]);
    gateway.want(vec![on(V100, "1-0")], vec![]);
    let worker = gateway
        .until("a worker", |state| {
            state.status.as_ref()?.replicas.first()?.pid
        })
        .await;
    let daemon = of_v100().unwrap().pid;
    assert_ne!(daemon, before);
    assert_eq!(worker_user::identity(daemon), worker_user::identity(worker));
    assert_eq!(worker_user::identity(worker)[0], flags[1]);
    assert!(gpu(&gateway.state.borrow(), V100).unwrap().mps);
}
