//! The traffic of one model, with versions whose replicas are set by hand.

use super::*;

fn v(number: u32) -> ModelVersion {
    ModelVersion::new(number).unwrap()
}

fn id(version: u32) -> ModelId {
    ModelId {
        name: "m".parse().unwrap(),
        version: v(version),
    }
}

fn split(shares: &[(u32, u32)]) -> Split {
    Split::new(
        shares
            .iter()
            .map(|(version, share)| (v(*version), *share))
            .collect(),
    )
    .unwrap()
}

/// A model with two or more versions, in virtual time.
struct Scenario {
    traffic: Traffic,
    now: Time,
    versions: Vec<ObservedVersion>,
    counts: BTreeMap<ModelId, RequestCounts>,
    records: Vec<SplitRecord>,
    released: Vec<ModelVersion>,
    rejected: Vec<RejectedVersion>,
    /// True if the last update changed what the data plane is told.
    told: bool,
}

impl Scenario {
    /// Version 1 serves with `replicas` replicas, and version 2 was just registered.
    fn with_two_versions(replicas: usize) -> Self {
        let mut scenario = Self {
            traffic: Traffic::default(),
            now: Time::ZERO,
            versions: vec![version(1, replicas, replicas, 100.0)],
            counts: BTreeMap::new(),
            records: Vec::new(),
            released: Vec::new(),
            rejected: Vec::new(),
            told: false,
        };
        scenario.update();
        assert_eq!(
            scenario.traffic.shares(&id(1).name),
            None,
            "one version needs no split"
        );
        scenario.versions.push(version(2, 0, 0, 0.0));
        scenario.update();
        scenario
    }

    fn update(&mut self) {
        let change = self.traffic.update(self.now, &id(1).name, &self.versions);
        self.told = change.shares;
        self.records.extend(change.record);
        self.released.extend(change.released);
        self.rejected.extend(change.rejected);
    }

    /// Sets the planned and serving replicas of a version, and the planned rate.
    fn set(&mut self, number: u32, planned: usize, serving: usize, rate: f64) {
        let all = &mut self.versions;
        let found = all.iter_mut().find(|o| o.version == v(number)).unwrap();
        *found = version(number, planned, serving, rate);
        self.update();
    }

    /// Has version 2 be planned with two replicas for the whole rate, and version 1 with one that stands by.
    fn plan_the_second(&mut self, serving: usize) {
        self.set(2, 1, 1, 0.01);
        self.set(1, 1, 1, 0.01);
        self.set(2, 2, serving, 100.0);
    }

    fn shares(&self) -> Vec<(u32, u32)> {
        let (shares, _) = self.traffic.shares(&id(1).name).unwrap();
        shares
            .iter()
            .map(|(version, share)| (version.get(), *share))
            .collect()
    }

    fn pass(&mut self, time: Duration) {
        self.now += time;
        let due = self.traffic.take_touched(self.now);
        if !due.is_empty() {
            self.update();
        }
    }

    /// Counts requests of a version, `within` of them within the SLO.
    fn count(&mut self, version: u32, arrived: u64, within: u64) {
        let counts = self.counts.entry(id(version)).or_default();
        counts.arrive(arrived, 1);
        counts.within_slo += within;
        counts.missed += arrived - within;
        self.traffic.sample(self.now, &self.counts);
        self.pass(Duration::from_secs(1));
    }

    fn demand(&self, version: u32) -> Demand {
        self.traffic.demand(&id(version))
    }
}

fn version(number: u32, planned: usize, serving: usize, planned_rate: f64) -> ObservedVersion {
    ObservedVersion {
        version: v(number),
        is_servable: true,
        is_placeable: true,
        planned,
        planned_serving: serving,
        serving,
        planned_rate,
    }
}

#[test]
fn a_new_version_gets_requests_as_its_serving_replicas_are_planned_to_carry() {
    let mut scenario = Scenario::with_two_versions(4);
    assert_eq!(scenario.shares(), [(1, 100)]);
    assert_eq!(scenario.demand(1), Demand::Share(0.9));
    assert_eq!(
        scenario.demand(2),
        Demand::Share(0.1),
        "a small part shows that it starts"
    );

    // The first replica serves: from now on the whole rate is planned for the new version.
    scenario.set(1, 4, 4, 90.0);
    scenario.set(2, 1, 0, 10.0);
    assert_eq!(scenario.shares(), [(1, 100)]);
    scenario.set(2, 1, 1, 10.0);
    assert_eq!(scenario.shares(), [(1, 90), (2, 10)]);
    assert_eq!(scenario.demand(2), Demand::Share(1.0));
    assert_eq!(scenario.demand(1), Demand::Standby);
    assert_eq!(scenario.traffic.successors(&id(1)), [id(2)]);

    scenario.set(1, 1, 1, 0.01);
    scenario.set(2, 4, 1, 100.0);
    assert_eq!(scenario.shares(), [(1, 75), (2, 25)]);
    scenario.set(2, 4, 3, 100.0);
    assert_eq!(scenario.shares(), [(1, 25), (2, 75)]);
    scenario.set(2, 4, 4, 100.0);
    assert_eq!(scenario.shares(), [(2, 100)]);

    // The replicas of the old version stay for the trial.
    assert_eq!(scenario.traffic.successors(&id(1)), [id(2)]);
    assert!(scenario.released.is_empty());
    assert_eq!(scenario.traffic.former(&id(1).name), Some(v(1)));
    scenario.pass(TRIAL);
    assert_eq!(scenario.released, [v(1)]);
    assert_eq!(scenario.traffic.former(&id(1).name), None);
    assert!(
        scenario.told,
        "the data plane learns that the trial is over"
    );
    assert_eq!(scenario.traffic.successors(&id(1)), [] as [ModelId; 0]);
    let record = scenario.records.last().unwrap();
    assert_eq!(
        (record.stable, record.previous.clone()),
        (Some(v(2)), Some(Split::all_to(v(1))))
    );

    // After ten minutes without requests it needs no replica.
    assert_eq!(scenario.demand(1), Demand::Standby);
    scenario.pass(RETIREMENT.saturating_sub(TRIAL));
    assert_eq!(scenario.demand(1), Demand::Retired);
}

#[test]
fn requests_return_to_the_old_version_while_the_new_one_fails() {
    let mut scenario = Scenario::with_two_versions(2);
    scenario.plan_the_second(2);
    assert_eq!(scenario.shares(), [(2, 100)]);
    scenario.set(2, 2, 1, 100.0);
    assert_eq!(scenario.shares(), [(1, 50), (2, 50)]);
    scenario.set(2, 2, 0, 100.0);
    assert_eq!(scenario.shares(), [(1, 100)]);
    // The trial begins again.
    scenario.set(2, 2, 2, 100.0);
    scenario.pass(TRIAL.saturating_sub(Duration::from_secs(1)));
    assert!(scenario.released.is_empty());
    scenario.pass(Duration::from_secs(1));
    assert_eq!(scenario.released, [v(1)]);
}

#[test]
fn a_version_whose_predecessor_does_not_serve_is_planned_for_the_whole_rate() {
    let scenario = Scenario::with_two_versions(0);
    assert_eq!(scenario.demand(2), Demand::Share(1.0));
    assert_eq!(scenario.shares(), [(2, 100)]);
}

#[test]
fn a_version_without_a_place_beside_its_predecessor_is_planned_for_the_whole_rate() {
    let mut scenario = Scenario::with_two_versions(2);
    scenario.set(1, 2, 2, 90.0);
    let unmeasured = ObservedVersion {
        is_placeable: false,
        ..version(2, 0, 0, 10.0)
    };
    scenario.versions[1] = unmeasured;
    scenario.update();
    assert_eq!(
        scenario.demand(2),
        Demand::Share(0.1),
        "it is not measured yet"
    );
    scenario.set(2, 0, 0, 10.0);
    assert_eq!(scenario.demand(2), Demand::Share(1.0));
    assert_eq!(scenario.demand(1), Demand::Standby);
    // Its predecessor answers everything until it serves.
    assert_eq!(scenario.shares(), [(1, 100)]);
    assert_eq!(scenario.traffic.successors(&id(1)), [id(2)]);
}

#[test]
fn a_version_that_misses_its_slo_significantly_more_often_is_rolled_back() {
    let mut scenario = Scenario::with_two_versions(2);
    scenario.count(1, 1000, 990);
    scenario.plan_the_second(1);
    assert_eq!(scenario.shares(), [(1, 50), (2, 50)]);
    scenario.count(2, 29, 0);
    assert!(scenario.rejected.is_empty(), "29 requests are too few");
    scenario.count(2, 1, 0);
    let rejected = scenario.rejected.pop().unwrap();
    assert_eq!(rejected.version, v(2));
    assert_eq!(
        rejected.reason,
        "0 % of its requests were answered within the SLO, and 99 % of those of version 1"
    );
    assert_eq!(scenario.shares(), [(1, 100)]);
    assert_eq!(scenario.demand(1), Demand::Share(1.0));
    assert_eq!(scenario.demand(2), Demand::Standby);

    // A newer version takes over all the same.
    scenario.versions.push(version(3, 0, 0, 0.0));
    scenario.update();
    scenario.set(3, 1, 1, 0.01);
    assert_eq!(scenario.demand(3), Demand::Share(1.0));
}

#[test]
fn requests_under_way_are_not_counted_against_a_version() {
    let mut scenario = Scenario::with_two_versions(2);
    scenario.count(1, 1000, 990);
    scenario.plan_the_second(1);
    // A hundred have come, of which forty are answered so far.
    let counts = scenario.counts.entry(id(2)).or_default();
    (counts.arrived, counts.within_slo) = (100, 40);
    scenario.traffic.sample(scenario.now, &scenario.counts);
    scenario.pass(Duration::from_secs(1));
    assert!(scenario.rejected.is_empty());
    assert_eq!(scenario.shares(), [(1, 50), (2, 50)]);
}

#[test]
fn a_small_or_insignificant_difference_is_no_failure() {
    let mut scenario = Scenario::with_two_versions(2);
    scenario.count(1, 1000, 990);
    scenario.plan_the_second(1);
    // 3 points below, however many requests there are.
    scenario.count(2, 100_000, 96_000);
    assert!(scenario.rejected.is_empty());

    let mut few = Scenario::with_two_versions(2);
    few.count(1, 40, 32);
    few.plan_the_second(1);
    // 10 points below, which 40 requests do not show.
    few.count(2, 40, 28);
    assert!(few.rejected.is_empty());
}

#[test]
fn a_split_by_an_admin_is_reached_as_far_as_replicas_carry_it_and_its_canary_is_rolled_back() {
    let mut scenario = Scenario::with_two_versions(2);
    let mut record = scenario.traffic.record(&id(1).name);
    record.previous = Some(Split::all_to(v(1)));
    record.split = Some(split(&[(1, 90), (2, 10)]));
    scenario.traffic.set_record(record);
    scenario.update();
    assert_eq!(scenario.shares(), [(1, 100)]);
    assert_eq!(scenario.demand(1), Demand::Share(0.9));
    assert_eq!(scenario.demand(2), Demand::Share(0.1));
    scenario.set(1, 2, 2, 90.0);
    scenario.set(2, 1, 1, 10.0);
    assert_eq!(scenario.shares(), [(1, 90), (2, 10)]);

    scenario.count(1, 900, 890);
    scenario.count(2, 100, 60);
    assert_eq!(scenario.rejected.len(), 1);
    assert_eq!(scenario.shares(), [(1, 100)]);
    let record = scenario.traffic.record(&id(1).name);
    assert_eq!(record.split, Some(Split::all_to(v(1))));
    assert_eq!(record.previous, Some(split(&[(1, 90), (2, 10)])));
}

#[test]
fn requests_that_name_a_retired_version_bring_its_replica_back() {
    let mut scenario = Scenario::with_two_versions(2);
    scenario.plan_the_second(2);
    scenario.pass(TRIAL);
    for _ in 0..20 {
        scenario.count(1, 1, 1);
        scenario.pass(Duration::from_mins(1));
    }
    assert_eq!(
        scenario.demand(1),
        Demand::Standby,
        "it is asked for every minute"
    );
    // What the cache answers shows that it is in use, too.
    for _ in 0..20 {
        scenario.counts.entry(id(1)).or_default().hits += 1;
        scenario.count(1, 0, 0);
        scenario.pass(Duration::from_mins(1));
    }
    assert_eq!(scenario.demand(1), Demand::Standby);
    scenario.pass(RETIREMENT);
    assert_eq!(scenario.demand(1), Demand::Retired);
    scenario.count(1, 1, 0);
    assert_eq!(scenario.demand(1), Demand::Standby);
}

#[test]
fn a_removed_version_leaves_no_hole() {
    let mut scenario = Scenario::with_two_versions(2);
    scenario.plan_the_second(1);
    scenario.versions.remove(1);
    scenario.update();
    assert_eq!(scenario.shares(), [(1, 100)]);
    assert_eq!(scenario.demand(1), Demand::Share(1.0));

    let mut split_by_hand = Scenario::with_two_versions(2);
    let mut record = split_by_hand.traffic.record(&id(1).name);
    record.split = Some(split(&[(1, 40), (2, 60)]));
    split_by_hand.traffic.set_record(record);
    split_by_hand.update();
    split_by_hand.versions.remove(1);
    split_by_hand.update();
    assert_eq!(split_by_hand.shares(), [(1, 100)]);
    assert_eq!(split_by_hand.traffic.record(&id(1).name).split, None);

    split_by_hand.versions.clear();
    split_by_hand.update();
    assert_eq!(split_by_hand.traffic.shares(&id(1).name), None);
}

#[test]
fn a_restart_in_the_middle_of_a_takeover_goes_on_and_revives_no_retired_version() {
    let record = SplitRecord {
        stable: Some(v(2)),
        ..SplitRecord::new(id(1).name)
    };
    let mut scenario = Scenario::with_two_versions(2);
    scenario.traffic = Traffic::restore(vec![record]);
    scenario.versions = vec![
        version(1, 0, 0, 0.0),
        version(2, 2, 2, 100.0),
        version(3, 1, 1, 0.01),
    ];
    scenario.update();
    assert_eq!(scenario.shares(), [(2, 100)]);
    assert_eq!(scenario.demand(3), Demand::Share(1.0));
    assert_eq!(scenario.demand(1), Demand::Retired);
}
