//! Where a model is on its way from registration to serving, and why: one pure function over what is known of it.

use packhorse_api::{ModelState, ProfilingView};
use packhorse_cluster::ReplicaState;

/// What is known of a model.
#[derive(Clone, Debug, Default)]
pub(super) struct Standing<'a> {
    /// Why it cannot be served as it is registered.
    pub(super) failure: Option<&'a str>,
    /// Its replicas in the plan.
    pub(super) replicas: Vec<ReplicaStanding<'a>>,
    /// Replicas of earlier plans that still answer.
    pub(super) earlier_serving: usize,
    /// Devices that take replicas.
    pub(super) devices: usize,
    /// There is a profile of it on a kind of device that takes replicas.
    pub(super) profiled: bool,
    /// Measurements under way.
    pub(super) profiling: &'a [ProfilingView],
    /// A measurement of it waits for a device that measures another model.
    pub(super) queued: bool,
    /// A plan is being made or will be.
    pub(super) planning: bool,
    /// Why the last attempt gave no plan.
    pub(super) trouble: Option<&'a str>,
    /// Why the plan does not, or not fully, serve it.
    pub(super) shortfall: Option<&'a str>,
}

/// What is known of one replica in the plan.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ReplicaStanding<'a> {
    /// The gateway is connected to it and gives it batches.
    pub(super) serving: bool,
    /// It waits for memory that replicas of earlier plans hold.
    pub(super) waiting: bool,
    /// Its node's agent is silent.
    pub(super) silent: bool,
    /// What its node says of it.
    pub(super) state: Option<ReplicaState>,
    /// Why it is not ready, by its node.
    pub(super) reason: Option<&'a str>,
    /// Why there is no connection to it.
    pub(super) link: Option<&'a str>,
}

/// Where a model is, and why it is there and what it waits for.
pub(super) fn model_state(standing: &Standing<'_>) -> (ModelState, Option<String>) {
    if let Some(failure) = standing.failure {
        return (ModelState::Failed, Some(failure.to_owned()));
    }
    let serving = standing.replicas.iter().filter(|r| r.serving).count();
    if serving + standing.earlier_serving > 0 {
        return (ModelState::Ready, ready_reason(standing, serving));
    }
    if let Some(first) = standing.replicas.iter().min_by_key(|r| distance(r)) {
        return starting(first);
    }
    if standing.devices == 0 {
        let reason = "waits for a node that takes replicas".to_owned();
        return (ModelState::Registered, Some(reason));
    }
    if !standing.profiled {
        return unprofiled(standing);
    }
    if standing.planning {
        return (ModelState::Planning, None);
    }
    let reason = standing
        .shortfall
        .or(standing.trouble)
        .unwrap_or("the policy gives no reason");
    (
        ModelState::Unplaced,
        Some(format!("the plan has no place for it: {reason}")),
    )
}

fn ready_reason(standing: &Standing<'_>, serving: usize) -> Option<String> {
    let planned = standing.replicas.len();
    if serving < planned {
        return Some(format!("{serving} of {planned} planned replicas serve"));
    }
    if planned == 0 {
        return Some("replicas of an earlier plan still serve".to_owned());
    }
    standing.shortfall.map(ToOwned::to_owned)
}

/// How far a replica is from serving; the one that is nearest speaks for its model.
fn distance(replica: &ReplicaStanding<'_>) -> u8 {
    match replica.state {
        _ if replica.silent => 5,
        Some(ReplicaState::Ready) => 0,
        Some(ReplicaState::Loading) => 1,
        Some(ReplicaState::Fetching) => 2,
        None | Some(ReplicaState::Draining) => 3,
        Some(ReplicaState::BackingOff | ReplicaState::Failed) => 4,
    }
}

fn starting(replica: &ReplicaStanding<'_>) -> (ModelState, Option<String>) {
    let because = |text: &str| match replica.reason {
        Some(reason) => format!("{text}: {reason}"),
        None => text.to_owned(),
    };
    if replica.silent {
        let reason = "the agent of its node is silent".to_owned();
        return (ModelState::Loading, Some(reason));
    }
    let (state, reason) = match replica.state {
        Some(ReplicaState::Ready) => {
            let reason = match replica.link {
                Some(problem) => format!("connects to its worker: {problem}"),
                None => "connects to its worker".to_owned(),
            };
            (ModelState::Loading, reason)
        }
        Some(ReplicaState::Fetching) => (
            ModelState::Fetching,
            because("its node fetches the artifact"),
        ),
        Some(ReplicaState::Loading) => (ModelState::Loading, because("its worker loads it")),
        Some(ReplicaState::BackingOff) => (
            ModelState::Loading,
            because("its worker died and will be started again"),
        ),
        Some(ReplicaState::Failed) => (ModelState::Loading, because("its worker cannot serve it")),
        None | Some(ReplicaState::Draining) if replica.waiting => (
            ModelState::Loading,
            "waits for memory that replicas of an earlier plan still hold".to_owned(),
        ),
        None | Some(ReplicaState::Draining) => (
            ModelState::Loading,
            "waits for its node to start a worker".to_owned(),
        ),
    };
    (state, Some(reason))
}

fn unprofiled(standing: &Standing<'_>) -> (ModelState, Option<String>) {
    let Some(profiling) = standing.profiling.first() else {
        let reason = if standing.queued {
            "waits until a device has measured another model"
        } else {
            "there is no profile of it on any device, and it cannot be measured there"
        };
        let state = if standing.queued {
            ModelState::Profiling
        } else {
            ModelState::Unplaced
        };
        return (state, Some(reason.to_owned()));
    };
    let kind = &profiling.device_kind;
    let reason = match profiling.total {
        0 => format!("is measured on {kind}"),
        total => format!(
            "is measured on {kind}: {} of {total} batch sizes",
            profiling.done
        ),
    };
    (ModelState::Profiling, Some(reason))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(standing: &Standing<'_>, state: ModelState, reason: &str) {
        let (got, why) = model_state(standing);
        assert_eq!(
            (got, why.as_deref().unwrap_or_default()),
            (state, reason),
            "{standing:?}"
        );
    }

    fn replica(state: ReplicaState) -> ReplicaStanding<'static> {
        ReplicaStanding {
            state: Some(state),
            ..ReplicaStanding::default()
        }
    }

    const SERVING: ReplicaStanding<'static> = ReplicaStanding {
        serving: true,
        waiting: false,
        silent: false,
        state: Some(ReplicaState::Ready),
        reason: None,
        link: None,
    };

    #[test]
    fn before_it_is_placed() {
        let alone = Standing::default();
        check(
            &alone,
            ModelState::Registered,
            "waits for a node that takes replicas",
        );
        let devices = Standing {
            devices: 1,
            ..Standing::default()
        };
        let queued = Standing {
            queued: true,
            ..devices.clone()
        };
        check(
            &queued,
            ModelState::Profiling,
            "waits until a device has measured another model",
        );
        let profiling = |done, total| {
            [ProfilingView {
                device_kind: "cpu-x".parse().unwrap(),
                done,
                total,
            }]
        };
        check(
            &Standing {
                profiling: &profiling(0, 0),
                ..devices.clone()
            },
            ModelState::Profiling,
            "is measured on cpu-x",
        );
        check(
            &Standing {
                profiling: &profiling(3, 5),
                ..devices.clone()
            },
            ModelState::Profiling,
            "is measured on cpu-x: 3 of 5 batch sizes",
        );
        let profiled = Standing {
            profiled: true,
            ..devices
        };
        check(
            &Standing {
                planning: true,
                ..profiled.clone()
            },
            ModelState::Planning,
            "",
        );
        check(
            &Standing {
                shortfall: Some("needs 3 GiB, 1 GiB left"),
                trouble: Some("older"),
                ..profiled.clone()
            },
            ModelState::Unplaced,
            "the plan has no place for it: needs 3 GiB, 1 GiB left",
        );
        check(
            &Standing {
                trouble: Some("the policy panicked"),
                ..profiled
            },
            ModelState::Unplaced,
            "the plan has no place for it: the policy panicked",
        );
    }

    #[test]
    fn while_its_replicas_start() {
        let with = |replicas| Standing {
            devices: 1,
            profiled: true,
            planning: true,
            replicas,
            ..Standing::default()
        };
        check(
            &with(vec![ReplicaStanding::default()]),
            ModelState::Loading,
            "waits for its node to start a worker",
        );
        check(
            &with(vec![ReplicaStanding {
                waiting: true,
                ..ReplicaStanding::default()
            }]),
            ModelState::Loading,
            "waits for memory that replicas of an earlier plan still hold",
        );
        check(
            &with(vec![replica(ReplicaState::Fetching)]),
            ModelState::Fetching,
            "its node fetches the artifact",
        );
        check(
            &with(vec![
                replica(ReplicaState::Fetching),
                replica(ReplicaState::Loading),
            ]),
            ModelState::Loading,
            "its worker loads it",
        );
        check(
            &with(vec![ReplicaStanding {
                reason: Some("exit code 1"),
                ..replica(ReplicaState::BackingOff)
            }]),
            ModelState::Loading,
            "its worker died and will be started again: exit code 1",
        );
        check(
            &with(vec![ReplicaStanding {
                link: Some("connection refused"),
                ..replica(ReplicaState::Ready)
            }]),
            ModelState::Loading,
            "connects to its worker: connection refused",
        );
        check(
            &with(vec![ReplicaStanding {
                silent: true,
                ..replica(ReplicaState::Ready)
            }]),
            ModelState::Loading,
            "the agent of its node is silent",
        );
    }

    #[test]
    fn once_it_serves() {
        let standing = Standing {
            replicas: vec![SERVING],
            ..Standing::default()
        };
        check(&standing, ModelState::Ready, "");
        check(
            &Standing {
                replicas: vec![SERVING, replica(ReplicaState::BackingOff)],
                ..standing.clone()
            },
            ModelState::Ready,
            "1 of 2 planned replicas serve",
        );
        check(
            &Standing {
                shortfall: Some("served at 40 of 50 requests/s"),
                ..standing.clone()
            },
            ModelState::Ready,
            "served at 40 of 50 requests/s",
        );
        check(
            &Standing {
                replicas: vec![replica(ReplicaState::Loading)],
                earlier_serving: 1,
                ..standing.clone()
            },
            ModelState::Ready,
            "0 of 1 planned replicas serve",
        );
        check(
            &Standing {
                failure: Some("it throws"),
                ..standing
            },
            ModelState::Failed,
            "it throws",
        );
    }
}
