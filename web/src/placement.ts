/** What the map shows: which part of a device's memory and compute each replica takes. */

import type { DeviceView, ForecastView, ModelView, NodeView, PlacementView, ReplicaView } from "./api/types";
import type { ClusterState } from "./live/state";

/** The points of a measured curve of one model on one kind of device, by batch size. */
export type Profiles = ReadonlyMap<string, readonly { batch: number; latencyMs: number; memoryMib: number | null }[]>;

export interface PlacedReplica {
  id: string;
  model: string;
  version: number;
  device: string;
  batchSize: number;
  sharePct: number | null;
  /** The other models that the same worker serves. */
  also: string[];
  /** The part of the device's memory, from 0 to 1; null if unknown. */
  memory: number | null;
  memoryBytes: number | null;
  /** The part of the device's time that its requests need by the profile, from 0 to 1; null if unknown. */
  load: number | null;
  state: "serving" | "starting" | "leaving" | "planned";
  view: ReplicaView | null;
}

export interface PlacedDevice {
  device: DeviceView;
  node: NodeView;
  replicas: PlacedReplica[];
  memory: number;
  load: number;
}

/** Reads profiles from rows of the CSV: those of whole devices. */
export function profilesOf(rows: readonly Record<string, string>[]): Profiles {
  const found = new Map<string, { batch: number; latencyMs: number; memoryMib: number | null }[]>();
  for (const row of rows) {
    const share = row["compute_share_pct"];
    if (share !== "" && share !== undefined && Number(share) !== 100) continue;
    const key = `${row["model"]} ${row["device_kind"]}`;
    const memory = row["memory_mib"];
    const point = { batch: Number(row["batch_size"]), latencyMs: Number(row["latency_ms"]), memoryMib: memory ? Number(memory) : null };
    found.set(key, [...(found.get(key) ?? []), point]);
  }
  for (const points of found.values()) points.sort((a, b) => a.batch - b.batch);
  return found;
}

function interpolate(profiles: Profiles, model: string, kind: string, batch: number): { latencyMs: number; memoryMib: number | null } | null {
  const points = profiles.get(`${model} ${kind}`);
  const last = points?.[points.length - 1];
  const first = points?.[0];
  if (!points || !first || !last) return null;
  if (batch <= first.batch) return first;
  const after = points.findIndex((point) => point.batch >= batch);
  const high = points[after];
  const low = points[after - 1];
  if (!high || !low) return { latencyMs: (last.latencyMs * batch) / last.batch, memoryMib: last.memoryMib };
  const part = (batch - low.batch) / (high.batch - low.batch);
  const between = (a: number, b: number) => a + (b - a) * part;
  return { latencyMs: between(low.latencyMs, high.latencyMs), memoryMib: low.memoryMib !== null && high.memoryMib !== null ? between(low.memoryMib, high.memoryMib) : null };
}

/** What a replica takes of its device. A model's rate is divided over its replicas by what each carries at its batch size. */
function need(planned: PlacementView, all: readonly PlacementView[], forecasts: ReadonlyMap<string, ForecastView>, profiles: Profiles) {
  const key = `${planned.model}:${planned.version}`;
  const capacityOf = (replica: PlacementView) => {
    const batch = Math.max(1, replica.batch_size);
    const point = interpolate(profiles, key, replica.device_kind, batch);
    return point ? (batch * 1000) / point.latencyMs : null;
  };
  const own = capacityOf(planned);
  const total = all.reduce((sum, replica) => sum + (capacityOf(replica) ?? 0), 0);
  const rate = forecasts.get(key)?.predicted_goodput_rps;
  const load = own === null || rate === undefined || total === 0 ? null : Math.min(1, rate / total);
  const memoryMib = interpolate(profiles, key, planned.device_kind, Math.max(1, planned.batch_size))?.memoryMib ?? null;
  return { load, memoryBytes: memoryMib === null ? null : memoryMib * 2 ** 20 };
}

/** The devices with the replicas of a plan, and those that still run although the plan no longer has them. */
export function placed(cluster: Pick<ClusterState, "models" | "nodes">, plan: { replicas: readonly PlacementView[]; models: readonly ForecastView[] } | null, profiles: Profiles): PlacedDevice[] {
  const forecasts = new Map(plan?.models.map((forecast) => [`${forecast.name}:${forecast.version}`, forecast]));
  const running = new Map<string, { view: ReplicaView; model: ModelView }>();
  for (const model of cluster.models.values()) for (const view of model.replicas) running.set(view.id, { view, model });
  const siblings = new Map<string, PlacementView[]>();
  for (const planned of plan?.replicas ?? []) {
    const key = `${planned.model}:${planned.version}`;
    siblings.set(key, [...(siblings.get(key) ?? []), planned]);
  }
  const byDevice = new Map<string, PlacedReplica[]>();
  const add = (replica: PlacedReplica) => byDevice.set(replica.device, [...(byDevice.get(replica.device) ?? []), replica]);
  const seen = new Set<string>();
  for (const [index, planned] of (plan?.replicas ?? []).entries()) {
    const id = planned.id ?? `planned-${index}`;
    seen.add(id);
    const view = running.get(id)?.view ?? null;
    const { load, memoryBytes } = need(planned, siblings.get(`${planned.model}:${planned.version}`) ?? [], forecasts, profiles);
    const state = planned.id === null || planned.id === undefined ? "planned" : view?.serving ? "serving" : "starting";
    const also = planned.also ?? [];
    // The memory of a worker counts once, for the first of its models.
    const own = also.some((other) => other < `${planned.model}:${planned.version}`) ? 0 : memoryBytes;
    add({ id, model: planned.model, version: planned.version, device: planned.device, batchSize: planned.batch_size, sharePct: planned.compute_share_pct ?? null, also, memory: null, memoryBytes: view?.memory_bytes ?? own, load, state, view });
  }
  const isCurrent = plan?.replicas.every((replica) => replica.id !== null && replica.id !== undefined) ?? true;
  if (isCurrent) {
    for (const { view, model } of running.values()) {
      if (seen.has(view.id)) continue;
      add({ id: view.id, model: model.name, version: model.version, device: view.device, batchSize: view.batch_size, sharePct: view.compute_share_pct ?? null, also: [], memory: null, memoryBytes: view.memory_bytes ?? null, load: null, state: "leaving", view });
    }
  }
  return [...cluster.nodes.values()].flatMap((node) =>
    node.devices.map((device) => {
      const replicas = (byDevice.get(device.id) ?? []).sort((a, b) => a.model.localeCompare(b.model) || a.id.localeCompare(b.id));
      for (const replica of replicas) replica.memory = replica.memoryBytes === null ? null : Math.min(1, replica.memoryBytes / device.memory_bytes);
      const sum = (of: (replica: PlacedReplica) => number | null) => replicas.reduce((total, replica) => total + (of(replica) ?? 0), 0);
      return { device, node, replicas, memory: sum((replica) => replica.memory), load: sum((replica) => replica.load) };
    }),
  );
}

const hues = new Map<string, number>();

/** The hue of a model in degrees: far from those of the models seen just before it, and the same for as long as the tab is open. */
export function hueOf(model: string): number {
  const known = hues.get(model);
  if (known !== undefined) return known;
  // Steps of the golden angle never meet again.
  const hue = Math.round((215 + hues.size * 137.508) % 360);
  hues.set(model, hue);
  return hue;
}
