//! Tests of the group servers: by hand, and over random loads.

use std::fmt::Write as _;

use packhorse_cluster::{DeviceIndex, PlannedReplica};
use proptest::prelude::*;

use super::*;
use crate::{PlanReport, Report, SimulateError, simulate};

fn at(millis: u64) -> Time {
    Time::ZERO + Duration::from_millis(millis)
}

/// Returns a scenario without a network. A batch of `long` takes 100 ms and 4 ms per row more, one of `short` 10 ms and 2 ms per row more, both up to
/// 16 rows; both have 300 MiB of weights. Devices have 500 MiB, and 1 MiB per millisecond comes from the host.
fn scenario(devices: usize, rate: f64, slo_ms: u32, more: &str) -> Scenario {
    let mut profiles = "model,device_kind,batch_size,compute_share_pct,latency_ms,latency_p99_ms,memory_mib,achieved_occupancy_pct,mean_occupancy_pct,sm_utilization_pct\n".to_owned();
    for (name, base, row) in [("long", 100, 4), ("short", 10, 2)] {
        for rows in [1, 16] {
            writeln!(profiles, "{name},box,{rows},,{},,300,,,", base + row * rows).expect("text");
        }
    }
    let mut text = format!(
        "name = \"group\"\nprofiles = [\"box.csv\"]\n[[devices]]\nkind = \"box\"\ncount = {devices}\nmemory_mib = 500\n\
         host_link_bytes_per_s = 1048576000\n[simulation]\nrouter_overhead_ms = 0\nnetwork_base_ms = 0\nreturn_ms = 0\n\
         warmup_s = 0\nwindow_s = 4\n{more}\n"
    );
    for name in ["long", "short"] {
        writeln!(
            text,
            "[[models]]\nname = \"{name}\"\nrate_rps = {rate}\nslo_ms = {slo_ms}"
        )
        .expect("text");
    }
    Scenario::parse(&text, &mut |_| Ok(profiles.clone())).expect("a valid scenario")
}

const LONG: usize = 0;
const SHORT: usize = 1;

/// Returns a plan with both models on every device, or with those of these numbers.
fn plan(scenario: &Scenario, models: &[usize]) -> Vec<PlannedReplica> {
    let devices = 0..scenario.problem.devices.len();
    let replicas = devices.flat_map(|device| {
        let models = models.iter();
        models.map(move |&model| {
            PlannedReplica::new(
                packhorse_cluster::ModelIndex(model),
                DeviceIndex(device),
                16,
            )
        })
    });
    replicas.collect()
}

/// A group server without a world.
struct Run {
    server: Box<dyn GroupServer>,
    requests: u64,
}

/// The device, the model, the number of requests and the stopped batch of each batch.
type Sent = Vec<(usize, usize, usize, Option<u64>)>;

impl Run {
    fn new(discipline: Discipline, scenario: &Scenario, plan: &[PlannedReplica]) -> Self {
        let (server, _) = group_server(discipline, scenario, plan).expect("a group server");
        Self {
            server,
            requests: 0,
        }
    }

    fn arrive(&mut self, now: u64, model: usize, deadline: u64) {
        let request = GroupRequest {
            deadline: at(deadline),
            number: self.requests,
            model,
        };
        self.requests += 1;
        self.server.request_arrived(at(now), request);
    }

    fn actions(&mut self, now: u64) -> Vec<GroupAction> {
        let mut actions = Vec::new();
        self.server.decide(at(now), &mut actions);
        actions
    }

    fn sent(&mut self, now: u64) -> Sent {
        let actions = self.actions(now);
        let sent = actions.into_iter().filter_map(|action| match action {
            GroupAction::Start(order) => {
                let rows = order.requests.len();
                Some((order.device, order.model, rows, order.preempts))
            }
            _ => None,
        });
        sent.collect()
    }

    fn done(
        &mut self,
        now: u64,
        batch: u64,
        (device, model, rows): (usize, usize, u32),
        millis: u64,
    ) {
        let computed = ComputedBatch {
            batch,
            device,
            model,
            rows,
            compute: Duration::from_millis(millis),
            at: at(now),
        };
        self.server.batch_computed(at(now), computed);
    }
}

fn run(scenario: &Scenario, plan: &[PlannedReplica], discipline: Discipline, seed: u64) -> Report {
    let report = PlanReport::from_replicas(scenario, plan);
    simulate(scenario, report, plan, discipline, seed, &mut |_| {}).expect("it fits")
}

#[test]
fn an_idle_device_gets_the_largest_batch_of_all_models() {
    let scenario = scenario(1, 1.0, 300, "");
    let plan = plan(&scenario, &[LONG, SHORT]);
    let mut run = Run::new(Discipline::FlexNp, &scenario, &plan);
    for _ in 0..2 {
        run.arrive(0, SHORT, 300);
    }
    for _ in 0..3 {
        run.arrive(0, LONG, 300);
    }
    // Three of the long model take 112 ms; the two short ones follow when these are done.
    assert_eq!(run.sent(0), [(0, LONG, 3, None)]);
    assert_eq!(run.server.wake(), Some(at(112)));
    run.done(112, 0, (0, LONG, 3), 112);
    assert_eq!(run.sent(112), [(0, SHORT, 2, None)]);
}

#[test]
fn a_batch_that_is_3_03_times_as_large_stops_another_one() {
    for (discipline, stops) in [(Discipline::Flex, true), (Discipline::FlexNp, false)] {
        let scenario = scenario(1, 1.0, 300, "");
        let plan = plan(&scenario, &[LONG, SHORT]);
        let mut run = Run::new(discipline, &scenario, &plan);
        run.arrive(0, LONG, 300);
        assert_eq!(run.sent(0), [(0, LONG, 1, None)]);
        for _ in 0..3 {
            run.arrive(10, SHORT, 100);
            assert_eq!(run.sent(10), []);
        }
        // Four are more than 3.03 times one.
        run.arrive(11, SHORT, 100);
        let expected: &[_] = if stops {
            &[(0, SHORT, 4, Some(0))]
        } else {
            &[]
        };
        assert_eq!(run.sent(11), expected, "{discipline}");
        if stops {
            // The stopped request waits again, and is in time behind the four.
            run.done(31, 1, (0, SHORT, 4), 18);
            assert_eq!(run.sent(31), [(0, LONG, 1, None)]);
        } else {
            // 104 ms of the long one are over when the short ones cannot be in time any more.
            let dropped = run.actions(100).into_iter();
            let dropped = dropped.filter(|action| matches!(action, GroupAction::Drop(_)));
            assert_eq!(dropped.count(), 4);
        }
    }
}

#[test]
fn exit_points_cost_time_and_end_a_computation_at_their_distance() {
    let exit_points = ExitPoints {
        interval: Duration::from_millis(4),
        cost: Duration::from_millis(1),
    };
    // Two whole intervals in eleven milliseconds.
    let stretched = exit_points.stretched(Duration::from_millis(11));
    assert_eq!(stretched, Duration::from_millis(13));
    let exits = [100, 101, 105, 106].map(|now| exit_points.next(at(100), at(now)));
    assert_eq!(exits, [at(100), at(105), at(105), at(110)]);
}

#[test]
fn clockwork_begins_with_the_batch_that_must_begin_first_and_keeps_10_ms_ahead() {
    let mut roomy = scenario(1, 1.0, 300, "");
    for model in &mut roomy.problem.models {
        model.weights = packhorse_cluster::ByteCount::from_mib(100);
    }
    let plan = plan(&roomy, &[LONG, SHORT]);
    let mut run = Run::new(Discipline::Clockwork, &roomy, &plan);
    // The long one must begin at 96, the short one at 188.
    run.arrive(0, SHORT, 200);
    run.arrive(0, LONG, 200);
    assert_eq!(run.sent(0), [(0, LONG, 1, None)]);
    // Its work ends at 104; the next batch is sent after 94.
    assert_eq!(run.sent(94), []);
    for _ in 0..2 {
        run.arrive(94, SHORT, 294);
    }
    let wake = run.server.wake().expect("the short ones wait");
    assert_eq!(wake, at(94) + Duration::from_nanos(1));
    // Two of the three fill a size.
    assert_eq!(run.sent(95), [(0, SHORT, 2, None)]);
}

#[test]
fn clockwork_loads_the_weights_that_are_needed_and_evicts_the_oldest() {
    let scenario = scenario(1, 1.0, 1000, "");
    let plan = plan(&scenario, &[LONG]);
    let mut run = Run::new(Discipline::Clockwork, &scenario, &plan);
    run.arrive(0, SHORT, 1000);
    let device = 0;
    let expected = [
        GroupAction::Unload {
            device,
            model: LONG,
        },
        GroupAction::Load {
            device,
            model: SHORT,
        },
    ];
    assert_eq!(run.actions(0), expected);
    // 300 MiB take 300 ms. Nothing is sent before they are there, and nothing more is loaded.
    assert_eq!(run.actions(200), []);
    run.server.model_loaded(at(300), 0, SHORT);
    assert_eq!(run.sent(300), [(0, SHORT, 1, None)]);
    // The weights of a batch that the device holds stay.
    run.arrive(305, LONG, 1305);
    assert_eq!(run.actions(305), []);
    run.done(312, 0, (0, SHORT, 1), 12);
    let expected = [
        GroupAction::Unload {
            device,
            model: SHORT,
        },
        GroupAction::Load {
            device,
            model: LONG,
        },
    ];
    assert_eq!(run.actions(312), expected);
}

#[test]
fn a_batch_that_cannot_begin_in_its_window_comes_back_and_every_request_ends() {
    // Batches take three times as long as the profile says, which the first ones do not know.
    let scenario = scenario(1, 60.0, 400, "latency_scale = 3.0");
    let plan = plan(&scenario, &[SHORT]);
    let report = run(&scenario, &plan, Discipline::Clockwork, 1);
    let short = &report.models[SHORT];
    assert!(short.goodput_rps > 0.3 * short.offered_rps, "{short:?}");
}

#[test]
fn group_disciplines_refuse_what_they_do_not_know() {
    let faults = "faults = [{ at_s = 1.0, kind = \"worker-dies\", device = 0, for_s = 1.0 }]";
    let scenario = scenario(1, 1.0, 300, faults);
    let report = PlanReport::from_replicas(&scenario, &[]);
    for discipline in Discipline::ALL.into_iter().filter(|name| !name.is_live()) {
        let refused = simulate(&scenario, report.clone(), &[], discipline, 1, &mut |_| {});
        let expected = SimulateError::NotForGroups {
            discipline,
            what: "faults",
        };
        assert_eq!(refused.map(|report| report.seed), Err(expected));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// The times of the profiles hold, so that what is in time by the estimate is in time.
    #[test]
    fn no_answer_is_late_and_every_request_ends_once(
        rate in 5.0..400.0_f64,
        devices in 1..4_usize,
        slo_ms in 110..600_u32,
        cv in 0.5..4.0_f64,
        one_model in any::<bool>(),
        seed in 0..1000_u64,
    ) {
        let more = format!("arrivals = {{ gamma_cv = {cv} }}");
        let scenario = scenario(devices, rate, slo_ms, &more);
        let models: &[usize] = if one_model { &[SHORT] } else { &[LONG, SHORT] };
        let plan = plan(&scenario, models);
        for discipline in Discipline::ALL.into_iter().filter(|name| !name.is_live()) {
            // Weights of 300 MiB do not fit twice: clockwork loads them again and again.
            let report = run(&scenario, &plan, discipline, seed);
            for model in &report.models {
                let good = (model.goodput_rps * 4.0).round() as u64;
                let offered = (model.offered_rps * 4.0).round() as u64;
                prop_assert_eq!(good + model.dropped, offered, "{} {:?}", discipline, model);
            }
        }
    }

    /// Batches take longer or shorter than by the profile, and answers may be late; nothing is forgotten (the world asserts it).
    #[test]
    fn every_request_ends_whatever_batches_take(
        rate in 5.0..200.0_f64,
        scale in 0.3..3.0_f64,
        slo_ms in 110..600_u32,
        seed in 0..1000_u64,
    ) {
        let scenario = scenario(2, rate, slo_ms, &format!("latency_scale = {scale}"));
        for discipline in Discipline::ALL.into_iter().filter(|name| !name.is_live()) {
            run(&scenario, &plan(&scenario, &[LONG, SHORT]), discipline, seed);
        }
    }
}
