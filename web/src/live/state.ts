/** The state of the cluster as the page knows it, and how events change it. Nothing here reads a clock or a socket. */

import type {
  DeviceView,
  EventView,
  Finding,
  GoodputView,
  ModelGoodput,
  ModelView,
  NodeView,
  PlanView,
  PolicyView,
  ReplicaView,
  Snapshot,
  Subject,
} from "../api/types";

/** The number of seconds of a model's goodput that are kept. */
export const MODEL_HISTORY = 120;
/** The number of events that are kept. */
export const EVENTS = 1000;

/** One second of a model. Times are in seconds since 1970, rates in requests per second. */
export interface Second {
  at: number;
  offered: number;
  goodput: number;
}

export interface ClusterState {
  models: ReadonlyMap<string, ModelView>;
  nodes: ReadonlyMap<string, NodeView>;
  plan: PlanView | null;
  policy: PolicyView;
  findings: readonly Finding[];
  /** Goodput of the last second. */
  second: ReadonlyMap<string, ModelGoodput>;
  /** Goodput of the last minute; null before it was asked for. */
  minute: GoodputView | null;
  /** Goodput of the last five minutes; null before it was asked for. */
  fiveMinutes: GoodputView | null;
  modelHistory: ReadonlyMap<string, readonly Second[]>;
  /** The newest last. */
  events: readonly EventView[];
}

/** The key of a version of a model, as the API names it. */
export const keyOf = (model: { name: string; version: number }): string => `${model.name}:${model.version}`;

/** A text that changes when a model gets a profile, or a measurement replaces an estimate. */
export function profilesKey(model: Pick<ModelView, "profiled_on" | "estimated_on">): string {
  return `${model.profiled_on.join()} ${(model.estimated_on ?? []).join()}`;
}

/** Replaces everything but what the page alone remembers. */
export function fromSnapshot(snapshot: Snapshot, before: ClusterState | null): ClusterState {
  return {
    models: new Map(snapshot.models.map((model) => [keyOf(model), model])),
    nodes: new Map(snapshot.nodes.map((node) => [node.name, node])),
    plan: snapshot.plan ?? null,
    policy: snapshot.policy,
    findings: snapshot.findings,
    second: new Map(snapshot.goodput.models.map((model) => [keyOf(model), model])),
    minute: before?.minute ?? null,
    fiveMinutes: before?.fiveMinutes ?? null,
    modelHistory: before?.modelHistory ?? new Map(),
    events: before?.events ?? [],
  };
}

/** Appends a second of goodput. */
export function withGoodput(state: ClusterState, goodput: GoodputView, at: number): ClusterState {
  const modelHistory = new Map<string, readonly Second[]>();
  for (const model of goodput.models) {
    const key = keyOf(model);
    const second: Second = {
      at,
      offered: model.offered_rps,
      goodput: model.goodput_rps,
    };
    modelHistory.set(key, appended(state.modelHistory.get(key) ?? [], second, MODEL_HISTORY));
  }
  return {
    ...state,
    second: new Map(goodput.models.map((model) => [keyOf(model), model])),
    modelHistory,
  };
}

function appended<T>(list: readonly T[], item: T, most: number): readonly T[] {
  return [...list.slice(Math.max(0, list.length + 1 - most)), item];
}

/** Applies changes, of which each is read once. */
export function withEvents(state: ClusterState, events: readonly EventView[]): ClusterState {
  const next = { ...state, events: [...state.events, ...events].slice(-EVENTS) };
  const models = new Map(state.models);
  const nodes = new Map(state.nodes);
  for (const event of events) {
    switch (event.kind) {
      case "model":
        setOrDelete(models, modelOf(event.subject), event.object as ModelView | undefined);
        break;
      case "node":
        setOrDelete(nodes, nodeOf(event.subject), event.object as NodeView | undefined);
        break;
      case "device":
        changeDevice(nodes, event);
        break;
      case "replica":
        changeReplica(models, next.plan, event);
        break;
      case "plan":
        if (event.object && event.state !== "proposed" && event.state !== "rejected") next.plan = event.object as PlanView;
        break;
      case "finding":
        next.findings = changedFindings(next.findings, event);
        break;
      default:
    }
  }
  return { ...next, models, nodes };
}

function setOrDelete<T>(map: Map<string, T>, key: string | null, value: T | null | undefined): void {
  if (key === null) return;
  if (value) map.set(key, value);
  else map.delete(key);
}

const modelOf = (subject: Subject | null | undefined) => (subject && "model" in subject ? subject.model : null);
const nodeOf = (subject: Subject | null | undefined) => (subject && "node" in subject ? subject.node : null);

function changeDevice(nodes: Map<string, NodeView>, event: EventView): void {
  if (!event.subject || !("device" in event.subject)) return;
  const id = event.subject.device;
  const node = nodes.get(id.slice(0, id.indexOf("/")));
  if (!node) return;
  const others = node.devices.filter((device) => device.id !== id);
  const device = event.object as DeviceView | undefined;
  const devices = device ? [...others, device].sort((a, b) => a.id.localeCompare(b.id)) : others;
  nodes.set(node.name, { ...node, devices });
}

/** A replica's event does not name its model: the model that has it, or the plan, does. */
function changeReplica(models: Map<string, ModelView>, plan: PlanView | null, event: EventView): void {
  if (!event.subject || !("replica" in event.subject)) return;
  const id = event.subject.replica;
  const planned = plan?.replicas.find((replica) => replica.id === id);
  const owner = [...models.values()].find((model) => model.replicas.some((replica) => replica.id === id));
  const model = owner ?? (planned && models.get(`${planned.model}:${planned.version}`));
  if (!model) return;
  const replica = event.object as ReplicaView | undefined;
  const others = model.replicas.filter((other) => other.id !== id);
  models.set(keyOf(model), { ...model, replicas: replica ? [...others, replica].sort((a, b) => byId(a.id, b.id)) : others });
}

const byId = (a: string, b: string) => a.localeCompare(b, "en", { numeric: true });

/** The name of what a finding or an event is about, in words. */
export function subjectText(subject: Subject | null | undefined): string {
  if (!subject) return "cluster";
  const [kind, id] = Object.entries(subject)[0] ?? ["", ""];
  return `${kind} ${String(id)}`;
}

export const findingKey = (finding: Finding): string => `${finding.problem} ${subjectText(finding.subject)} ${finding.model ?? ""}`;

const URGENCY = { critical: 0, warning: 1, info: 2 } as const;

function changedFindings(findings: readonly Finding[], event: EventView): readonly Finding[] {
  const changed = event.object as Finding | undefined;
  if (!changed) return findings;
  const others = findings.filter((finding) => findingKey(finding) !== findingKey(changed));
  if (event.state === "cleared") return others;
  return [...others, changed].sort((a, b) => URGENCY[a.severity] - URGENCY[b.severity]);
}
