//! Nodes, their devices and the replicas on them, as text.

use std::collections::BTreeMap;

use packhorse_api::{DeviceView, ModelView, NodeView, ReplicaView};
use packhorse_cluster::{ComputeShare, ReplicaId};
use packhorse_terminal::{output, versioned_name};

use super::model::replica_state;

/// Width of the bar of a whole device, in characters.
const BAR: usize = 10;

type Replicas<'a> = BTreeMap<ReplicaId, (&'a ModelView, &'a ReplicaView)>;

/// Returns a tree of nodes, their devices and the replicas on them.
pub(crate) fn node_tree(nodes: &[NodeView], models: &[ModelView]) -> String {
    if nodes.is_empty() {
        return "no nodes: start packhorse-agent on a machine to add one".to_owned();
    }
    let replicas = models.iter().flat_map(|model| {
        model
            .replicas
            .iter()
            .map(move |replica| (replica.id, (model, replica)))
    });
    let replicas: Replicas<'_> = replicas.collect();
    let mut lines = Vec::new();
    for node in nodes {
        lines.push(node_line(node));
        for (i, device) in node.devices.iter().enumerate() {
            let last = i + 1 == node.devices.len();
            lines.push(format!(
                "{} {}",
                if last { "└─" } else { "├─" },
                device_line(device)
            ));
            let margin = if last { "   " } else { "│  " };
            lines.extend(
                device_lines(device, &replicas)
                    .into_iter()
                    .map(|line| format!("{margin}{line}")),
            );
        }
    }
    lines.join("\n")
}

fn node_line(node: &NodeView) -> String {
    let last_seen = node.last_seen_ms.map_or_else(
        || "not seen since the gateway started".to_owned(),
        |ms| format!("seen {} s ago", output::format_number(ms as f64 / 1e3)),
    );
    format!(
        "{}  {}  (agent {}, {last_seen})",
        node.name,
        output::state_name(&node.state),
        node.agent_version
    )
}

fn device_line(device: &DeviceView) -> String {
    let units = match device.multiprocessors {
        Some(threads) if device.kind.as_str().starts_with("cpu") => format!(", {threads} threads"),
        Some(multiprocessors) => format!(", {multiprocessors} multiprocessors"),
        None => String::new(),
    };
    format!(
        "{}  {}  ({}{units})",
        device.id.local(),
        device.kind,
        device.memory_bytes
    )
}

fn device_lines(device: &DeviceView, replicas: &Replicas<'_>) -> Vec<String> {
    if device.replicas.is_empty() {
        return vec!["└─ idle".to_owned()];
    }
    let mut table = output::new_table(&[]);
    for (i, id) in device.replicas.iter().enumerate() {
        let branch = if i + 1 == device.replicas.len() {
            "└─"
        } else {
            "├─"
        };
        match replicas.get(id) {
            Some((model, replica)) => table.add_row([
                format!("{branch} {}", versioned_name(&model.name, model.version)),
                format!("batch {}", replica.batch_size),
                share(replica.compute_share_pct),
                replica_state(replica),
            ]),
            // The model is already removed while its replica still drains.
            None => table.add_row([format!("{branch} replica {id}")]),
        };
    }
    output::table_text(&table)
        .lines()
        .map(str::to_owned)
        .collect()
}

fn share(share: Option<ComputeShare>) -> String {
    let Some(share) = share else {
        return String::new();
    };
    let full = ((share.get() / 100.0 * BAR as f64).round() as usize).clamp(1, BAR);
    format!(
        "{}{} {} %",
        "█".repeat(full),
        "░".repeat(BAR - full),
        output::format_number(share.get())
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn devices_are_listed_with_their_replicas() {
        let replica = |id: &str, share: Option<f64>, state: &str, serving: bool| {
            json!({"id": id, "device": "laptop/cpu0", "device_kind": "cpu-x", "batch_size": 8, "compute_share_pct": share,
                "state": state, "serving": serving, "restarts": 2, "pid": 1, "reason": null})
        };
        let model = |name: &str, version: u32, replica: serde_json::Value| {
            json!({"name": name, "version": version, "state": "ready", "reason": null,
                "artifact": format!("sha256:{}", "0".repeat(64)), "artifact_bytes": 1, "max_batch_size": 8, "slo_ms": 100.0,
                "rate_rps": 1.0, "inputs": [], "outputs": [], "profiled_on": [], "profiling": [], "replicas": [replica]})
        };
        let models: Vec<ModelView> = serde_json::from_value(json!([
            model("cat", 1, replica("1-0", Some(50.0), "ready", true)),
            model("minilm", 2, replica("1-1", None, "backing_off", false)),
        ]))
        .unwrap();
        let device = |id: &str, replicas: &[&str]| {
            json!({"id": id, "kind": "cpu-x", "description": "", "memory_bytes": 1 << 30, "multiprocessors": 2,
                "replicas": replicas})
        };
        let cluster: Vec<NodeView> = serde_json::from_value(json!([
            {"name": "laptop", "state": "ready", "agent_version": "0.1.0", "last_seen_ms": 1500,
                "devices": [device("laptop/cpu0", &["1-0", "1-1", "0-9"]), device("laptop/cpu1", &[])]},
            {"name": "old", "state": "lost", "agent_version": "0.1.0", "last_seen_ms": null, "devices": []},
        ]))
        .unwrap();
        let expected = "\
laptop  ready  (agent 0.1.0, seen 1.5 s ago)
├─ cpu0  cpu-x  (1.0 GiB, 2 threads)
│  ├─ cat          batch 8  █████░░░░░ 50 %  ready (restarted 2 times)
│  ├─ minilm:2     batch 8                   backing off (restarted 2 times)
│  └─ replica 0-9
└─ cpu1  cpu-x  (1.0 GiB, 2 threads)
   └─ idle
old  lost  (agent 0.1.0, not seen since the gateway started)";
        assert_eq!(node_tree(&cluster, &models), expected);
    }
}
