//! A link through its life: what its owner, the engine and the control plane learn.

use std::{cell::RefCell, net::SocketAddr};

use packhorse_cluster::{
    ArtifactDigest, Profile, ProfileTable, Program, Replica, ReplicaId, ReplicaPhase, ReplicaSpec,
};

use super::*;

/// Notes the addresses that are connected to. Batches go nowhere.
#[derive(Debug, Default)]
struct Connector(RefCell<Vec<SocketAddr>>);

impl Connect for Connector {
    type Link = ();
    type Batches = ();

    fn connect(&self, _: ReplicaKey, target: &Target) {
        self.0.borrow_mut().push(target.address);
    }
}

fn profile() -> Profile {
    let csv = format!(
        "{}\nm,T4,1,,10,,100,,,\nm,T4,8,,20,,100,,,\n",
        ProfileTable::CSV_HEADER
    );
    let table = ProfileTable::from_csv(&csv).unwrap();
    let profile = table.get(&"m:1".parse().unwrap(), &"T4".parse().unwrap());
    profile.unwrap().clone()
}

/// Returns a replica whose worker listens on a port of this machine.
fn target(id: &str, port: u16, phase: ReplicaPhase) -> Target {
    let program = Program {
        model: "m:1".parse().unwrap(),
        artifact: ArtifactDigest::from_sha256([1; 32]),
        max_batch_size: 8,
        inputs: Vec::new(),
        outputs: Vec::new(),
    };
    Target {
        replica: Replica {
            id: id.parse().unwrap(),
            spec: ReplicaSpec {
                model: Arc::new(program),
                device: "n/gpu0".parse().unwrap(),
                batch_size: 8,
                compute_share: None,
                duty_cycle: None,
                memory: None,
                backbone: None,
                pool: None,
            },
            phase,
            worker: None,
        },
        address: SocketAddr::from(([127, 0, 0, 1], port)),
        local_path: None,
        capacity: None,
        profile: Arc::new(profile()),
    }
}

const MODEL: ModelKey = ModelKey(7);
const FIRST: ReplicaKey = ReplicaKey(0);

fn id() -> ReplicaId {
    "1-0".parse().unwrap()
}

/// Returns links with a replica that is connected, and the addresses that were connected to.
fn connected() -> (Links<Connector>, Connector) {
    let (mut links, connector) = (Links::default(), Connector::default());
    let planned = target("1-0", 1, ReplicaPhase::Planned);
    assert!(links.serve(planned, MODEL, &connector).is_empty());
    assert_eq!(
        links.state(id()),
        Some(&LinkState::Connecting { reason: None })
    );
    let effect = links.link_up(FIRST, (), false, None);
    assert!(matches!(
        effect,
        Some(Effect::Event(Event::ReplicaReady { replica: FIRST, ref parameters }))
            if parameters.model == MODEL && parameters.batch_size == 8
    ));
    (links, connector)
}

fn drained(links: &mut Links<Connector>) -> bool {
    let (changes, _) = links.take_changes();
    changes == [(id(), Some(LinkState::Drained))]
}

#[test]
fn a_lost_connection_is_told_to_the_engine_and_made_again() {
    let (mut links, connector) = connected();
    let (changes, models) = links.take_changes();
    assert_eq!(changes, [(id(), Some(LinkState::Serving))]);
    assert_eq!(models, BTreeSet::from([MODEL]));
    let effect = links.link_down(FIRST, "closed".to_owned());
    assert_eq!(effect, Some(Effect::ReplicaLost(FIRST)));
    let reason = Some("closed".to_owned());
    assert_eq!(links.state(id()), Some(&LinkState::Connecting { reason }));
    assert!(links.batches(FIRST).is_none());
    // A failed attempt is no news for the engine; the next one is.
    assert_eq!(links.link_down(FIRST, "refused".to_owned()), None);
    assert!(links.link_up(FIRST, (), false, None).is_some());
    assert_eq!(links.readiness(MODEL), (true, false));
    // The connection itself tries again; nobody has to ask for it.
    assert_eq!(connector.0.borrow().len(), 1);
}

#[test]
fn a_worker_at_another_address_is_another_worker() {
    let (mut links, connector) = connected();
    let same = links.serve(target("1-0", 1, ReplicaPhase::Planned), MODEL, &connector);
    assert!(same.is_empty());
    let other = links.serve(target("1-0", 2, ReplicaPhase::Planned), MODEL, &connector);
    assert_eq!(other, [Effect::ReplicaLost(FIRST)]);
    assert_eq!(connector.0.borrow().len(), 2);
    assert_eq!(
        links.state(id()),
        Some(&LinkState::Connecting { reason: None })
    );
    // What the former connection says is of no interest any more.
    assert_eq!(links.link_down(FIRST, "closed".to_owned()), None);
}

#[test]
fn a_draining_replica_answers_what_it_has_and_is_then_drained() {
    let (mut links, connector) = connected();
    links.take_changes();
    let draining = target("1-0", 1, ReplicaPhase::Draining);
    let effects = links.serve(draining, MODEL, &connector);
    assert_eq!(
        effects,
        [Effect::Event(Event::ReplicaDraining { replica: FIRST })]
    );
    assert_eq!(links.state(id()), Some(&LinkState::Draining));
    assert!(links.batches(FIRST).is_some());
    links.take_changes();
    links.drained(FIRST);
    assert!(drained(&mut links));
    // The control plane forgets it.
    assert_eq!(links.end(id()), None);
    assert_eq!(links.state(id()), None);
    assert_eq!(links.take_changes().0, [(id(), None)]);
}

#[test]
fn a_draining_replica_whose_connection_is_lost_is_drained_and_not_connected_to_again() {
    let (mut links, connector) = connected();
    links.serve(target("1-0", 1, ReplicaPhase::Draining), MODEL, &connector);
    links.take_changes();
    let effect = links.link_down(FIRST, "closed".to_owned());
    assert_eq!(effect, Some(Effect::ReplicaLost(FIRST)));
    assert!(drained(&mut links));
}

#[test]
fn an_ejected_replica_says_why_until_it_is_restored() {
    let (mut links, _) = connected();
    links.batch_failed(FIRST, "it throws".to_owned());
    assert_eq!(links.ejected(FIRST), "it throws");
    let reason = "it throws".to_owned();
    assert_eq!(links.state(id()), Some(&LinkState::Ejected { reason }));
    assert_eq!(links.readiness(MODEL), (false, false));
    links.restored(FIRST);
    assert_eq!(links.state(id()), Some(&LinkState::Serving));
}

#[test]
fn links_that_another_owner_takes_over_go_on() {
    let (mut links, connector) = connected();
    let mut other = target("2-0", 9, ReplicaPhase::Planned);
    other.replica.spec.device = "n/gpu1".parse().unwrap();
    let stays = ModelKey(8);
    links.serve(other, stays, &connector);
    let _ = links.take_changes();

    let part = links.split_off(&BTreeSet::from([MODEL]));
    assert_eq!((links.state(id()), links.model(FIRST)), (None, None));
    assert_eq!(
        links.places().map(|place| place.0).collect::<Vec<_>>(),
        [stays]
    );
    let mut owner: Links<Connector> = Links::numbered_from(100);
    owner.absorb(part);
    assert_eq!(owner.state(id()), Some(&LinkState::Serving));
    assert_eq!(owner.readiness(MODEL), (true, false));
    assert!(owner.link_down(FIRST, "cut".to_owned()).is_some());

    // A device keeps its key, and new ones have those of their owner.
    let mut third = target("3-0", 10, ReplicaPhase::Planned);
    owner.serve(third.clone(), MODEL, &connector);
    third.replica.id = "4-0".parse().unwrap();
    third.replica.spec.device = "n/gpu2".parse().unwrap();
    owner.serve(third, MODEL, &connector);
    assert_eq!(
        owner.devices["n/gpu0".parse::<DeviceId>().as_ref().unwrap()],
        (DeviceKey(0), 2)
    );
    assert_eq!(
        owner.devices["n/gpu2".parse::<DeviceId>().as_ref().unwrap()],
        (DeviceKey(100), 1)
    );
}
