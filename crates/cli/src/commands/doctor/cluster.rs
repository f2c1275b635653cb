//! The gateway, as it answers here, and the nodes and workers that it knows.

use std::time::Duration;

use packhorse_api::{ModelView, NodeView};
use packhorse_client::{AdminClient, CallError, EventMessage};
use packhorse_cluster::{NodeState, ReplicaState};
use packhorse_terminal::{context::Context, output};
use tokio::time::timeout;

use super::check::Check;

const INFERENCE: &str = "inference";
const ADMIN: &str = "admin";
const CLOCK: &str = "clock";
const AGENTS: &str = "agents";
const WORKERS: &str = "workers";

/// The largest difference between two clocks that people can be expected to overlook, in milliseconds.
const CLOCK_SKEW_MS: u64 = 5000;
/// The longest wait for the gateway's time.
const CLOCK_LIMIT: Duration = Duration::from_secs(10);

/// Examines the gateway and, if it lets us, what it knows of agents and workers.
pub(super) async fn checks(context: &Context) -> Vec<Check> {
    let mut checks = vec![inference(context).await];
    let admin = match context.admin() {
        Ok(admin) => admin,
        Err(e) => {
            let cure = "packhorse doctor --token-file FILE    (the gateway writes admin-token into its state folder)";
            checks.push(Check::problem(ADMIN, format!("{e:#}"), cure));
            return checks;
        }
    };
    let (nodes, models) = (admin.nodes().await, admin.models().await);
    let (nodes, models) = match (nodes, models) {
        (Ok(nodes), Ok(models)) => (nodes, models),
        (Err(e), _) | (_, Err(e)) => {
            checks.push(admin_failure(context, e));
            return checks;
        }
    };
    checks.push(Check::ok(
        ADMIN,
        format!("{} accepts the token", context.admin_url()),
    ));
    checks.push(clock(&admin).await);
    checks.extend(agents(&nodes));
    checks.extend(workers(&models));
    checks
}

async fn inference(context: &Context) -> Check {
    let url = context.url();
    let client = match context.inference() {
        Ok(client) => client,
        Err(e) => {
            let cure = "name the file of an API key: --key-file or PACKHORSE_KEY_FILE";
            return Check::problem(INFERENCE, format!("{e:#}"), cure);
        }
    };
    let version = match client.server_metadata().await {
        Ok(metadata) => metadata.version,
        Err(CallError::Connect { source, .. }) => {
            let text = format!("nothing listens at {url}: {source}");
            return Check::problem(
                INFERENCE,
                text,
                "packhorse-gateway    (or name its address: PACKHORSE_URL)",
            );
        }
        Err(e) if e.status().is_some_and(|status| status.as_u16() == 401) => {
            let text = format!("the gateway at {url} requires an API key");
            let cure = "packhorse keys create NAME --scope 'infer:*' > FILE, then --key-file FILE";
            return Check::problem(INFERENCE, text, cure);
        }
        Err(e) => return unexpected(INFERENCE, &url.to_string(), "--listen", &e),
    };
    if version != env!("CARGO_PKG_VERSION") {
        let text = format!(
            "the gateway at {url} is {version}, this program is {}",
            env!("CARGO_PKG_VERSION")
        );
        return Check::warning(INFERENCE, text, "install all programs of one version");
    }
    match client.ready().await {
        Ok(true) => Check::ok(INFERENCE, format!("gateway {version} at {url} is ready")),
        _ => Check::warning(
            INFERENCE,
            format!("gateway {version} at {url} is not ready: replicas of its plan do not serve"),
            "packhorse findings",
        ),
    }
}

fn admin_failure(context: &Context, error: CallError) -> Check {
    let url = context.admin_url().to_string();
    match error {
        CallError::Connect { source, .. } => Check::problem(
            ADMIN,
            format!("nothing listens at {url}: {source}"),
            "packhorse-gateway    (or name its admin address: PACKHORSE_ADMIN_URL)",
        ),
        CallError::Refused { status, .. } if matches!(status.as_u16(), 401 | 403) => {
            Check::problem(
                ADMIN,
                format!("{url} does not accept the token"),
                "packhorse doctor --token-file STATE/admin-token    (the file in the gateway's state folder)",
            )
        }
        error => unexpected(ADMIN, &url, "--admin-listen", &error),
    }
}

fn unexpected(part: &'static str, url: &str, flag: &str, error: &CallError) -> Check {
    if let CallError::Untrusted { source, .. } = error {
        return Check::problem(
            part,
            format!("{url} cannot be trusted: {source}"),
            "packhorse doctor --ca-file FILE    (such as ca.pem of packhorse certs init)",
        );
    }
    Check::problem(
        part,
        format!("what answers at {url} is no Packhorse gateway: {error}"),
        format!("packhorse-gateway {flag} 127.0.0.1:PORT with a free port"),
    )
}

async fn clock(admin: &AdminClient) -> Check {
    let there = async {
        match admin.events(None).await.ok()?.next().await.ok()?? {
            EventMessage::Snapshot(snapshot) => Some(snapshot.at_ms),
            EventMessage::Change(_) | EventMessage::Goodput(_) => None,
        }
    };
    match timeout(CLOCK_LIMIT, there).await {
        Ok(Some(there)) => compare_clocks(output::now_ms(), there),
        _ => Check::skipped(CLOCK, "the gateway does not say its time"),
    }
}

fn compare_clocks(here: u64, there: u64) -> Check {
    let apart = here.abs_diff(there);
    if apart <= CLOCK_SKEW_MS {
        return Check::ok(CLOCK, "the gateway's clock and this machine's agree");
    }
    let which = if there > here { "ahead of" } else { "behind" };
    let text = format!(
        "the gateway's clock is {:.1} s {which} this machine's",
        apart as f64 / 1e3
    );
    Check::warning(
        CLOCK,
        text,
        "sudo timedatectl set-ntp true    (on both machines)",
    )
}

/// Examines the agents: each holds its lease and is of this version.
fn agents(nodes: &[NodeView]) -> Vec<Check> {
    if nodes.is_empty() {
        return vec![Check::warning(
            AGENTS,
            "no agent has joined the cluster",
            "packhorse-agent --gateway URL --token-file STATE/agent-token",
        )];
    }
    nodes.iter().map(agent).collect()
}

fn agent(node: &NodeView) -> Check {
    let name = &node.name;
    if node.state == NodeState::Lost {
        let since = node.last_seen_ms.map_or_else(
            || "since the gateway started".to_owned(),
            |ago| format!("for {} s", ago / 1000),
        );
        let text = format!("the agent of node {name} has not been heard {since}");
        let cure =
            format!("on {name}: packhorse-agent --node {name} --gateway URL --token-file FILE");
        return Check::problem(AGENTS, text, cure);
    }
    if node.agent_version != env!("CARGO_PKG_VERSION") {
        let text = format!(
            "the agent of node {name} is {}, this program is {}",
            node.agent_version,
            env!("CARGO_PKG_VERSION")
        );
        return Check::warning(
            AGENTS,
            text,
            format!("on {name}: install this version and restart packhorse-agent"),
        );
    }
    Check::ok(
        AGENTS,
        format!("node {name} is {}", output::state_name(&node.state)),
    )
}

/// Examines the workers: one that is ready is connected to, and none fails.
fn workers(models: &[ModelView]) -> Vec<Check> {
    let mut checks = Vec::new();
    let mut serving = 0;
    for model in models {
        for replica in &model.replicas {
            let whose = format!("{}:{} on {}", model.name, model.version, replica.device);
            // That of a lost connection is the model's.
            let reason = replica.reason.as_ref().or(model.reason.as_ref());
            let reason = reason.map_or("no reason is known", String::as_str);
            match replica.state {
                _ if replica.serving => serving += 1,
                Some(ReplicaState::Ready) => checks.push(Check::problem(
                    WORKERS,
                    format!("the gateway is not connected to the worker of {whose}: {reason}"),
                    format!(
                        "packhorse model show {}    (if it was never connected: packhorse-agent --listen-address ADDRESS that the gateway can reach, and the same --link-secret-file on both)",
                        model.name
                    ),
                )),
                Some(ReplicaState::Failed | ReplicaState::BackingOff) => checks.push(Check::problem(
                    WORKERS,
                    format!("the worker of {whose} does not start: {reason}"),
                    format!("packhorse model show {}", model.name),
                )),
                _ => {}
            }
        }
    }
    if checks.is_empty() {
        checks.push(Check::ok(
            WORKERS,
            format!("{serving} workers are connected, none fails"),
        ));
    }
    checks
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::doctor::check::Verdict;

    #[test]
    fn clocks_may_differ_by_a_few_seconds() {
        assert_eq!(compare_clocks(10_000, 15_000).verdict, Verdict::Ok);
        let ahead = compare_clocks(10_000, 15_001);
        assert_eq!(
            ahead.text,
            "the gateway's clock is 5.0 s ahead of this machine's"
        );
        let behind = compare_clocks(100_000, 10_000);
        assert_eq!(
            behind.text,
            "the gateway's clock is 90.0 s behind this machine's"
        );
        assert_eq!(behind.verdict, Verdict::Warning);
    }
}
