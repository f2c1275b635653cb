import { expect, test } from "vitest";
import type { ModelView, NodeView, PlanView } from "./api/types";
import { parseCsv } from "./csv";
import { hueOf, placed, profilesOf } from "./placement";

const PROFILES = profilesOf(parseCsv("model,device_kind,batch_size,compute_share_pct,latency_ms,memory_mib\na:1,K,1,100,10,256\na:1,K,3,,20,512\na:1,K,3,50,99,512\n"));
const nodes = new Map([["n", { name: "n", state: "ready", devices: [{ id: "n/0", kind: "K", memory_bytes: 2 ** 30 }, { id: "n/1", kind: "K", memory_bytes: 2 ** 30 }] } as NodeView]]);
const planned = (id: string, device: string) => ({ id, model: "a", version: 1, device, device_kind: "K", batch_size: 2 });
const plan = { replicas: [planned("r1", "n/0"), planned("r2", "n/1")], models: [{ name: "a", version: 1, predicted_goodput_rps: 80 }] } as PlanView;
const running = (id: string, device: string, serving: boolean) => ({ id, device, serving, batch_size: 2, memory_bytes: 2 ** 28 });
const models = (...replicas: unknown[]) => new Map([["a:1", { name: "a", version: 1, replicas } as ModelView]]);

test("a replica takes memory and time by its profile until its worker tells better", () => {
  const [first, second] = placed({ nodes, models: models(running("r1", "n/0", true)) }, plan, PROFILES);
  // Two rows take 15 ms, so each replica carries 133 requests/s, and the two get 80.
  expect(first?.load).toBeCloseTo(40 / (2000 / 15), 6);
  expect([first?.memory, first?.replicas[0]?.state]).toEqual([0.25, "serving"]);
  expect([second?.memory, second?.replicas[0]?.state]).toEqual([0.375, "starting"]);
});

test("a replica that the plan no longer has is leaving", () => {
  const [first] = placed({ nodes, models: models(running("old", "n/0", true)) }, plan, PROFILES);
  expect(first?.replicas.map((replica) => [replica.id, replica.state])).toEqual([["old", "leaving"], ["r1", "starting"]]);
});

test("a plan that is not stored shows nothing that runs", () => {
  const preview = { ...plan, replicas: [{ ...planned("", "n/0"), id: null }] } as PlanView;
  const [first] = placed({ nodes, models: models(running("old", "n/0", true)) }, preview, PROFILES);
  expect(first?.replicas.map((replica) => replica.state)).toEqual(["planned"]);
});

test("replicas that share a worker have its memory once", () => {
  const b = { ...planned("r2", "n/0"), model: "b", also: ["a:1"] };
  const shared = { replicas: [{ ...planned("r1", "n/0"), also: ["b:1"] }, b], models: [{ name: "a", version: 1, predicted_goodput_rps: 80 }] } as PlanView;
  const both = new Map([...PROFILES, ...profilesOf(parseCsv("model,device_kind,batch_size,compute_share_pct,latency_ms,memory_mib\nb:1,K,2,100,15,384\n"))]);
  const [first] = placed({ nodes, models: models() }, shared, both);
  expect(first?.replicas.map((replica) => [replica.model, replica.memoryBytes, replica.also])).toEqual([["a", 384 * 2 ** 20, ["b:1"]], ["b", 0, ["a:1"]]]);
  expect(first?.memory).toBe(0.375);
});

test("without a profile nothing is known", () => {
  const [first] = placed({ nodes, models: models() }, plan, new Map());
  expect(first?.replicas[0]).toMatchObject({ load: null, memory: null });
});

test("a model keeps its hue, and models that come one after the other differ", () => {
  const hues = ["p", "q", "r"].map(hueOf);
  expect(["p", "q", "r"].map(hueOf)).toEqual(hues);
  expect(new Set(hues).size).toBe(3);
});
