//! The arrivals and the counters of a benchmark of a live gateway.

use super::*;

fn scenario_with_requests(requests: &[Option<u64>]) -> Scenario {
    let mut scenario = vision(1, 200.0, 200);
    scenario.problem.models.truncate(requests.len());
    scenario.workloads.truncate(requests.len());
    for (workload, requests) in scenario.workloads.iter_mut().zip(requests) {
        workload.requests = *requests;
    }
    scenario
}

#[test]
fn a_schedule_has_the_arrivals_of_a_simulation_with_the_same_seed() {
    let scenario = scenario_with_requests(&[None, None]);
    let replicas = plan(&scenario, &[("alexnet", 0, 16), ("densenet121", 0, 16)]);
    let schedule = ArrivalSchedule::new(&scenario, 7).unwrap();
    assert!(schedule.requests().is_sorted());
    let report = run(&scenario, &replicas, Discipline::Deadline, 7);
    let (models, totals) = BenchCounters::new(&scenario, &schedule).report(&[]);
    for (measured, simulated) in models.iter().zip(&report.models) {
        assert_eq!(
            measured.offered_rps.to_bits(),
            simulated.offered_rps.to_bits()
        );
    }
    assert_eq!(
        totals.offered_rps.to_bits(),
        report.totals.offered_rps.to_bits()
    );
    assert_ne!(schedule, ArrivalSchedule::new(&scenario, 8).unwrap());
}

#[test]
fn a_model_with_a_number_of_requests_has_that_many_and_its_own_window() {
    let scenario = scenario_with_requests(&[Some(1000), None]);
    let schedule = ArrivalSchedule::new(&scenario, 1).unwrap();
    let arrivals = |model| {
        let requests = schedule.requests().iter();
        let of_model = requests.filter(|request| request.1 == ModelIndex(model));
        of_model.map(|request| request.0).collect::<Vec<Time>>()
    };
    assert_eq!(arrivals(0).len(), 1000);
    // 1000 at 188 requests/s: the client's own work takes 0.308 ms per request.
    let last = arrivals(0)[999].as_secs_f64();
    assert!((5.0..6.0).contains(&last), "{last}");
    let (start, end) = schedule.window(ModelIndex(0));
    assert_eq!(start, Time::ZERO + Duration::from_secs(1));
    assert!(end > arrivals(0)[999] && end < Time::ZERO + Duration::from_secs(6));
    assert!(
        arrivals(1)
            .iter()
            .all(|at| *at < Time::ZERO + Duration::from_secs(9))
    );
    let error = ArrivalSchedule::new(&scenario_with_requests(&[Some(10)]), 1).unwrap_err();
    assert_eq!(
        error.to_string(),
        "models[0].requests: all 10 are sent before the warm-up of 1 s has ended"
    );
}

#[test]
fn latency_counts_from_when_a_request_was_due() {
    let mut scenario = scenario_with_requests(&[None]);
    let at = |millis| Time::ZERO + Duration::from_millis(millis);
    let moments = vec![at(500), at(1000), at(2000), at(3000), at(8999), at(9000)];
    scenario.simulation.arrivals = Arrivals::Trace(vec![moments]);
    let schedule = ArrivalSchedule::new(&scenario, 1).unwrap();
    let model = ModelIndex(0);
    let mut counters = BenchCounters::new(&scenario, &schedule);
    // Outside the window, in time, exactly at the SLO, late; the last one is dropped.
    for (due, answered) in [(500, 501), (1000, 1100), (2000, 2200), (3000, 3201)] {
        counters.answered(model, at(due), at(answered));
    }
    counters.dropped(model);
    let (models, totals) = counters.report(&[Some(1.5)]);
    let report = &models[0];
    assert_eq!((report.offered_rps, report.goodput_rps), (0.5, 0.25));
    assert!((report.throughput_rps - 3.0 / 8.0).abs() < f64::EPSILON);
    let (p50, p99) = (report.latency_ms.p50, report.latency_ms.p99);
    assert_eq!((p50, p99), (Some(200.0), Some(201.0)));
    assert_eq!(
        (report.mean_batch, report.stages_ms_p95),
        (Some(1.5), StagesReport::default())
    );
    assert_eq!((totals.dropped, totals.lost), (1, 0));
}
