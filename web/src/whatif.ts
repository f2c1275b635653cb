/** The changes of a what-if, and the request for a preview that they make. */

import type { ModelView, PlanPreviewRequest } from "./api/types";

export interface ModelChange {
  rate?: number;
  slo?: number;
  removed?: boolean;
  like?: string;
}

export interface WhatIf {
  /** Empty: the configured one. */
  policy: string;
  discipline: string;
  /** The factor of every rate. */
  load: number;
  /** By the name of a model: rate or SLO if they differ, whether it is left out, or the registered model that one to add is like. */
  models: Readonly<Record<string, ModelChange>>;
  /** The devices to add, by kind; negative to take away. */
  devices: Readonly<Record<string, number>>;
}

export const NOTHING: WhatIf = { policy: "", discipline: "", load: 1, models: {}, devices: {} };

/** Returns the rate that a what-if begins with: the reserved one, else the one that the next plan is made for. */
export function baseRate(model: ModelView): number {
  return model.rate_rps ?? model.measured?.planned_rps ?? 1;
}

/** Returns the body for `POST /v1/plans/preview`. */
export function previewOf(whatIf: WhatIf, models: Iterable<ModelView>): PlanPreviewRequest {
  const newest = newestVersions(models);
  const changed = [...newest.values()].flatMap((model) => {
    const change = whatIf.models[model.name];
    if (change?.removed) return [];
    const rate = change?.rate ?? (whatIf.load === 1 ? undefined : baseRate(model) * whatIf.load);
    if (rate === undefined && change?.slo === undefined) return [];
    return [{ name: model.name, ...(rate !== undefined && { rate_rps: rate }), ...(change?.slo !== undefined && { slo_ms: change.slo }) }];
  });
  const added = addedModels(whatIf, newest).map(({ name, like, rate, slo }) => ({ name, profile_of: like, rate_rps: rate, slo_ms: slo }));
  const devices = Object.entries(whatIf.devices).flatMap(([kind, count]) => (count !== 0 ? [{ kind, count }] : []));
  const remove = Object.entries(whatIf.models).flatMap(([name, change]) => (change.removed && newest.has(name) ? [name] : []));
  return {
    ...(whatIf.policy && { policy: whatIf.policy }),
    ...(whatIf.discipline && { discipline: whatIf.discipline }),
    ...(changed.length + added.length > 0 && { models: [...changed, ...added] }),
    ...(devices.length > 0 && { devices }),
    ...(remove.length > 0 && { remove }),
  };
}

/** Returns the models to add, with the rate and the SLO of those that they are like where they have none of their own. */
export function addedModels(whatIf: WhatIf, newest: ReadonlyMap<string, ModelView>): { name: string; like: string; rate: number; slo: number }[] {
  return Object.entries(whatIf.models).flatMap(([name, { like, rate, slo }]) => {
    const model = like === undefined ? undefined : newest.get(like);
    if (like === undefined || !model || newest.has(name)) return [];
    return [{ name, like, rate: rate ?? baseRate(model) * whatIf.load, slo: slo ?? model.slo_ms }];
  });
}

/** Returns a name that no model has, for one to add that is like a registered one. */
export function nameLike(like: string, whatIf: WhatIf, newest: ReadonlyMap<string, ModelView>): string {
  for (let number = 2; ; number += 1) {
    const name = `${like}-${number}`;
    if (!newest.has(name) && !whatIf.models[name]) return name;
  }
}

/** Returns the what-if of a request for a preview, such as that of a finding's cure. */
export function whatIfOf(request: PlanPreviewRequest): WhatIf {
  const models: Record<string, ModelChange> = {};
  for (const model of request.models ?? []) {
    models[model.name] = { ...(typeof model.rate_rps === "number" && { rate: model.rate_rps }), ...(typeof model.slo_ms === "number" && { slo: model.slo_ms }), ...(typeof model.profile_of === "string" && { like: model.profile_of }) };
  }
  for (const name of request.remove ?? []) models[name] = { removed: true };
  return {
    policy: request.policy ?? "",
    discipline: request.discipline ?? "",
    load: 1,
    models,
    devices: Object.fromEntries((request.devices ?? []).map(({ kind, count }) => [kind, count])),
  };
}

/** Reads the what-if of an address; nothing if it is none. */
export function readWhatIf(text: string | null): WhatIf {
  if (text === null) return NOTHING;
  try {
    const request: unknown = JSON.parse(text);
    return typeof request === "object" && request !== null ? whatIfOf(request as PlanPreviewRequest) : NOTHING;
  } catch {
    return NOTHING;
  }
}

export function newestVersions(models: Iterable<ModelView>): Map<string, ModelView> {
  const newest = new Map<string, ModelView>();
  for (const model of models) {
    const other = newest.get(model.name);
    if (!other || other.version < model.version) newest.set(model.name, model);
  }
  return newest;
}
