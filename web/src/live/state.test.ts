import { expect, test } from "vitest";
import type { EventView, Finding, GoodputView, ModelView, NodeView, PlanView, ReplicaView, Snapshot } from "../api/types";
import { EVENTS, fromSnapshot, MODEL_HISTORY, withEvents, withGoodput } from "./state";

const TOTAL = { offered_rps: 9, goodput_rps: 8, throughput_rps: 8, refused_rps: 1, late_rps: 0, failed_rps: 0 };
const replica = (id: string, more: Partial<ReplicaView> = {}) => ({ id, device: "n/d0", device_kind: "V100", batch_size: 4, restarts: 0, serving: false, ...more }) as ReplicaView;
const model = (name: string, more: Partial<ModelView> = {}) => ({ name, version: 1, state: "ready", replicas: [], profiled_on: [], profiling: [], rate_rps: 5, slo_ms: 100, ...more }) as unknown as ModelView;
const device = (id: string) => ({ id, kind: "V100", description: "", memory_bytes: 1, replicas: [] });
const node = (name: string) => ({ name, state: "ready", agent_version: "1", devices: [device(`${name}/d0`), device(`${name}/d1`)] }) as NodeView;
const plan = (generation: number) => ({ generation, replicas: [{ id: "r1", model: "a", version: 1, device: "n/d0", device_kind: "V100", batch_size: 4 }], models: [{ name: "a", version: 1, predicted_goodput_rps: 7 }], predicted_goodput_rps: 7 }) as unknown as PlanView;
const goodput = (): GoodputView => ({ window_s: 1, total: TOTAL, models: [{ name: "a", version: 1, ...TOTAL }] });
const snapshot = (): Snapshot => ({ id: 1, at_ms: 0, models: [model("a"), model("b")], nodes: [node("n")], plan: plan(1), policy: { policy: "goodput" } as Snapshot["policy"], findings: [], goodput: goodput() });

let number = 1;
const event = (kind: EventView["kind"], state: EventView["state"], more: Partial<EventView>): EventView => ({ id: ++number, kind, state, at_ms: 0, text: "", ...more });
const start = () => fromSnapshot(snapshot(), null);

test("a model that changes is replaced, and one that is removed is gone", () => {
  const changed = withEvents(start(), [event("model", "failed", { subject: { model: "a:1" }, object: model("a", { state: "failed" }) }), event("model", "removed", { subject: { model: "b:1" } })]);
  expect([...changed.models.keys()]).toEqual(["a:1"]);
  expect(changed.models.get("a:1")?.state).toBe("failed");
});

test("a device that fails stays in its place in its node", () => {
  const changed = withEvents(start(), [event("device", "failed", { subject: { device: "n/d0" }, object: { ...device("n/d0"), description: "broken" } })]);
  expect(changed.nodes.get("n")?.devices.map((d) => [d.id, d.description])).toEqual([["n/d0", "broken"], ["n/d1", ""]]);
});

test("a device that is removed leaves its node", () => {
  const changed = withEvents(start(), [event("device", "removed", { subject: { device: "n/d1" } })]);
  expect(changed.nodes.get("n")?.devices.map((d) => d.id)).toEqual(["n/d0"]);
});

test("a replica finds its model by the plan, and later by the model that has it", () => {
  const begun = withEvents(start(), [event("replica", "loading", { subject: { replica: "r1" }, object: replica("r1") })]);
  expect(begun.models.get("a:1")?.replicas.map((r) => r.serving)).toEqual([false]);
  const next = { ...begun, plan: null };
  const served = withEvents(next, [event("replica", "serving", { subject: { replica: "r1" }, object: replica("r1", { serving: true }) })]);
  expect(served.models.get("a:1")?.replicas.map((r) => r.serving)).toEqual([true]);
  const stopped = withEvents(served, [event("replica", "stopped", { subject: { replica: "r1" } })]);
  expect(stopped.models.get("a:1")?.replicas).toEqual([]);
});

test("an adopted plan is the current one, a proposed or rejected one is not", () => {
  const propose = event("plan", "proposed", { subject: { plan: 2 }, object: plan(2) });
  const reject = event("plan", "rejected", { subject: { plan: 2 }, object: plan(2) });
  expect(withEvents(start(), [propose, reject]).plan?.generation).toBe(1);
  expect(withEvents(start(), [event("plan", "adopted", { subject: { plan: 2 }, object: plan(2) })]).plan?.generation).toBe(2);
});

test("findings come in the order of their urgency and go when they are cleared", () => {
  const finding = (severity: Finding["severity"], cause: string): Finding => ({ severity, problem: cause, cause, text: cause });
  const raised = withEvents(start(), [event("finding", "raised", { object: finding("info", "i") }), event("finding", "raised", { object: finding("critical", "c") })]);
  expect(raised.findings.map((f) => f.cause)).toEqual(["c", "i"]);
  const cleared = withEvents(raised, [event("finding", "cleared", { object: { ...finding("critical", "c"), text: "with other numbers", cause: "and another cause" } })]);
  expect(cleared.findings.map((f) => f.cause)).toEqual(["i"]);
});

test("a model's goodput is kept for a limited time", () => {
  let state = start();
  for (let second = 0; second < MODEL_HISTORY + 5; second++) state = withGoodput(state, goodput(), second);
  expect(state.modelHistory.get("a:1")).toHaveLength(MODEL_HISTORY);
  expect(state.modelHistory.get("a:1")?.at(-1)).toEqual({ at: MODEL_HISTORY + 4, offered: 9, goodput: 8 });
});

test("a new snapshot replaces the cluster and keeps what only the page remembers", () => {
  const before = withGoodput(withEvents(start(), [event("node", "lost", { subject: { node: "n" }, object: { ...node("n"), state: "lost" } })]), goodput(), 1);
  const after = fromSnapshot(snapshot(), before);
  expect(after.nodes.get("n")?.state).toBe("ready");
  expect(after.modelHistory.get("a:1")).toHaveLength(1);
  expect(after.events).toHaveLength(1);
});

test("events are kept up to a limit", () => {
  const many = Array.from({ length: EVENTS + 10 }, () => event("drift", "rate", { subject: { model: "a:1" } }));
  expect(withEvents(start(), many).events).toHaveLength(EVENTS);
});
