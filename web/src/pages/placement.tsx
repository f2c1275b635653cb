/** The map of what runs where. */

import { useEffect, useMemo, useState } from "react";
import { call, getText } from "../api/client";
import type { Consequences, NodeView } from "../api/types";
import { parseCsv } from "../csv";
import { ago, bytes, count, fixed, percent, rate } from "../format";
import { columns } from "../history";
import { keyOf, profilesKey } from "../live/state";
import { useCluster } from "../live/store";
import { hueOf, placed, type PlacedReplica, type Profiles, profilesOf } from "../placement";
import { Lines, type Series } from "../ui/charts";
import { DryRun } from "../ui/dry-run";
import { chartMarks, gapsText, Marks, useHistory, WindowPicker } from "../ui/history";
import { useAction, useLoaded, useMayChange } from "../ui/hooks";
import { PlacementMap } from "../ui/map";
import { Card, Confirm, Empty, Page, Problem, State } from "../ui/parts";
import { href, modelHref, navigate, useRoute } from "../ui/route";
import { type Column, Table } from "../ui/table";

export function useProfiles(): Profiles {
  const cluster = useCluster();
  // Read again when a model has been estimated or measured on a kind of device.
  const measured = [...cluster.models.values()].map((model) => keyOf(model) + profilesKey(model)).join(" ");
  const loaded = useLoaded(`profiles ${measured}`, (signal) => getText("/v1/profiles", signal));
  const [last, setLast] = useState<string>("");
  useEffect(() => {
    if (loaded.data !== null) setLast(loaded.data);
  }, [loaded.data]);
  return useMemo(() => profilesOf(parseCsv(last)), [last]);
}

export function Placement() {
  const cluster = useCluster();
  const { query } = useRoute();
  const profiles = useProfiles();
  const picked = query.get("model");
  const marked = query.get("device") ?? query.get("node");
  const devices = useMemo(() => placed(cluster, cluster.plan, profiles), [cluster.models, cluster.nodes, cluster.plan, profiles]);
  const pick = (model: string | null) => navigate(href(["placement"], { model: model ?? undefined }));
  const moving = devices.flatMap((device) => device.replicas.filter((r) => r.state !== "serving"));
  const detail = (replica: PlacedReplica) => {
    const key = `${replica.model}:${replica.version}`;
    const goodput = cluster.minute?.models.find((m) => keyOf(m) === key);
    const forecast = cluster.plan?.models.find((m) => keyOf(m) === key);
    return `${key} has ${rate(goodput?.goodput_rps ?? 0)} requests/s in time, predicted ${rate(forecast?.predicted_goodput_rps ?? 0)}`;
  };
  if (cluster.nodes.size === 0) {
    return (
      <Page title="Placement">
        <Card>
          <Empty title="No node has joined yet." command={`packhorse-agent --gateway ${location.origin}`}>
            Start an agent on every machine whose devices shall serve models:
          </Empty>
        </Card>
      </Page>
    );
  }
  return (
    <Page
      title="Placement"
      lead={
        cluster.plan
          ? `Plan ${cluster.plan.generation}: ${count(cluster.plan.replicas.length, "replica")} on ${cluster.plan.devices_used} of ${count(devices.length, "device")}, because ${cluster.plan.reason}`
          : "There is no plan yet."
      }
      actions={<a className="button" href="#/plans">What if …</a>}
    >
      <div className="stack">
        {moving.length > 0 && (
          <p className="notice" role="status">
            Rolling out: {count(moving.filter((r) => r.state === "starting").length, "replica")} starting, {moving.filter((r) => r.state === "leaving").length} leaving.
          </p>
        )}
        <Legend picked={picked} onPick={pick} />
        <Card>
          <PlacementMap devices={devices} picked={picked} onPick={pick} marked={marked} detail={detail} />
        </Card>
        {marked !== null && devices.some(({ device }) => device.id === marked) && <DevicePast device={marked} />}
        <Nodes />
      </div>
    </Page>
  );
}

const DEVICE: readonly Series[] = [
  { label: "Compute time of batches", colour: "c0", fill: true, value: (value) => percent(value, 0) },
  { label: "Utilisation as its node reads it", colour: "c2", value: (value) => percent(value, 0) },
];

const MEMORY: readonly Series[] = [{ label: "Memory of workers", colour: "c3", fill: true, value: (value) => bytes(value * 2 ** 30) }];

/** How busy a device was in the window of the address. */
function DevicePast({ device }: { device: string }) {
  const { view, window, range, error } = useHistory({ device });
  const busy = useMemo(() => columns(view.device, view.step_s, [(p) => p.busy, (p) => p.utilization ?? null]), [view]);
  const memory = useMemo(() => columns(view.device, view.step_s, [(p) => p.memory_bytes / 2 ** 30]), [view]);
  const marks = useMemo(() => chartMarks(view.marks), [view]);
  const shared = { x: "time", height: 150, range, marks } as const;
  return (
    <Card title={`Device ${device}`} note={gapsText(busy.gaps)} actions={<WindowPicker window={window} board="devices" />}>
      <Problem text={error} />
      <Lines label={`Part of the time for which ${device} computed`} data={busy.data} series={DEVICE} unit="of the time" limit={{ value: 1, label: "all of the time" }} {...shared} />
      <Lines label={`Memory of the workers on ${device}`} data={memory.data} series={MEMORY} unit="GiB" {...shared} />
      <Marks marks={view.marks} />
    </Card>
  );
}

/** The number of models that the legend shows. */
const LEGEND = 24;

export function Legend({ picked, onPick }: { picked: string | null; onPick: (model: string | null) => void }) {
  const cluster = useCluster();
  const keys = [...new Set(cluster.plan?.replicas.map((r) => `${r.model}:${r.version}`))].sort();
  return (
    <ul className="legend" aria-label="Models">
      {keys.slice(0, LEGEND).map((key) => {
        const name = key.slice(0, key.lastIndexOf(":"));
        return (
          <li key={key}>
            <button type="button" aria-pressed={picked === key} onClick={() => onPick(picked === key ? null : key)}>
              <i style={{ background: `hsl(${hueOf(name)} 62% var(--map-light))` }} /> {key}
            </button>
          </li>
        );
      })}
      {keys.length > LEGEND && <li className="muted">and {keys.length - LEGEND} more</li>}
      {picked && (
        <li>
          <a href={modelHref(picked.slice(0, picked.lastIndexOf(":")), Number(picked.slice(picked.lastIndexOf(":") + 1)))}>Open {picked}</a>
        </li>
      )}
      <li className="muted small">above: memory, below: compute time by the profile; pale: starting or leaving; grey: free</li>
    </ul>
  );
}

type Act = "cordon" | "uncordon" | "drain" | "remove";

function Nodes() {
  const cluster = useCluster();
  const mayChange = useMayChange();
  const [asked, setAsked] = useState<{ node: string; act: "drain" | "remove" } | null>(null);
  const action = useAction(async (node: string, act: Act) => {
    const path = `/v1/nodes/${encodeURIComponent(node)}`;
    if (act === "remove") await call<Consequences>("DELETE", path);
    else await call<NodeView>("POST", `${path}/${act}`);
    setAsked(null);
  });
  const now = Date.now();
  const columns: readonly Column<NodeView>[] = [
    { title: "Node", cell: (node) => <a href={href(["placement"], { node: node.name })}>{node.name}</a>, sort: (node) => node.name },
    { title: "State", cell: (node) => <State state={node.state} />, sort: (node) => node.state },
    { title: "Devices", cell: (node) => fixed(node.devices.length, 0), sort: (node) => node.devices.length, numeric: true },
    { title: "Replicas", cell: (node) => fixed(node.devices.reduce((n, d) => n + d.replicas.length, 0), 0), numeric: true, from: "tablet" },
    { title: "Memory", cell: (node) => bytes(node.devices.reduce((sum, d) => sum + d.memory_bytes, 0)), numeric: true, from: "desktop" },
    { title: "GPU", cell: (node) => <Gpus node={node} />, from: "desktop" },
    { title: "Agent", cell: (node) => node.agent_version, from: "desktop" },
    { title: "Seen", cell: (node) => (node.state === "lost" && node.last_seen_ms !== null && node.last_seen_ms !== undefined ? ago(now - node.last_seen_ms, now) : ""), from: "tablet" },
    ...(mayChange
      ? [
          {
            title: "Actions",
            cell: (node: NodeView) => (
              <span className="actions" style={{ flexWrap: "nowrap" }}>
                {node.state === "ready" && <button type="button" disabled={action.busy} onClick={() => void action.run(node.name, "cordon")}>Cordon</button>}
                {(node.state === "cordoned" || node.state === "draining") && <button type="button" disabled={action.busy} onClick={() => void action.run(node.name, "uncordon")}>Uncordon</button>}
                {(node.state === "ready" || node.state === "cordoned") && <button type="button" onClick={() => setAsked({ node: node.name, act: "drain" })}>Drain</button>}
                {node.state === "lost" && <button type="button" onClick={() => setAsked({ node: node.name, act: "remove" })}>Remove</button>}
              </span>
            ),
          },
        ]
      : []),
  ];
  return (
    <Card className="flush" title="Nodes">
      {!asked && action.error && <Problem text={action.error} />}
      <Table label="Nodes" rows={[...cluster.nodes.values()]} columns={columns} rowKey={(node) => node.name} initial={{ title: "Node" }} maxHeight={480} />
      {asked && (
        <Confirm title={`${asked.act === "drain" ? "Drain" : "Remove"} ${asked.node}?`} action={asked.act === "drain" ? "Drain" : "Remove"} busy={action.busy} error={action.error} onConfirm={() => void action.run(asked.node, asked.act)} onClose={() => setAsked(null)}>
          <p>{asked.act === "drain" ? "Its replicas move to other nodes, and it gets no new ones. A replica stays until its model is served elsewhere." : "The node and its devices are forgotten. It may come back, as a new node."}</p>
          <NodeCosts node={asked.node} act={asked.act} />
        </Confirm>
      )}
    </Card>
  );
}

/** What the drain or the removal of a node takes from models. */
function NodeCosts({ node, act }: { node: string; act: "drain" | "remove" }) {
  const path = `/v1/nodes/${encodeURIComponent(node)}`;
  return act === "drain" ? <DryRun method="POST" path={`${path}/drain`} what="the plan without the node" /> : <DryRun method="DELETE" path={path} what="the plan without the node" />;
}

/** What the drivers say of the GPUs of a node, the most loaded first. */
function Gpus({ node }: { node: NodeView }) {
  const known = node.devices.flatMap((device) => (device.gpu ? [device.gpu] : []));
  if (known.length === 0) return null;
  const most = (of: (gpu: (typeof known)[number]) => number | null | undefined) => Math.max(...known.map((gpu) => of(gpu) ?? Number.NaN).filter((n) => !Number.isNaN(n)));
  const part = (value: number, unit: string) => (Number.isFinite(value) ? `${fixed(value, 0)} ${unit}` : "");
  return <span className="muted">{[part(most((g) => g.utilization_pct), "%"), part(most((g) => g.temperature_celsius), "°C"), part(most((g) => g.power_watts), "W")].filter(Boolean).join(", ")}</span>;
}
