/** What can be seen in a list of requests: how their latency is distributed, and where their time went. */

import type { RequestStages, RequestView, TotalGoodput } from "./api/types";

/** The stages of a request in their order. */
export const STAGES: readonly { key: keyof RequestStages; name: string; meaning: string }[] = [
  { key: "receive", name: "receive", meaning: "from the head of the HTTP request to the complete, valid request" },
  { key: "decode", name: "decode", meaning: "of pictures into tensors" },
  { key: "tokenize", name: "tokenize", meaning: "of texts into tensors" },
  { key: "lookup", name: "lookup", meaning: "of its answer in the cache of predictions" },
  { key: "load", name: "load", meaning: "until the weights of its model were on the device, if they were elsewhere" },
  { key: "batch", name: "batch", meaning: "until the last request of its batch arrived" },
  { key: "queue", name: "queue", meaning: "until its batch was formed" },
  { key: "network", name: "network", meaning: "to the worker and back" },
  { key: "worker_queue", name: "worker queue", meaning: "at the worker, before the batch was computed" },
  { key: "copy_in", name: "copy in", meaning: "into the device's memory" },
  { key: "compute", name: "compute", meaning: "the computation" },
  { key: "copy_out", name: "copy out", meaning: "out of the device's memory" },
];

/** The mean of every stage, in milliseconds; null without requests. */
export function meanStages(requests: readonly Pick<RequestView, "stages_ms">[]): RequestStages | null {
  if (requests.length === 0) return null;
  const mean = (key: keyof RequestStages) => requests.reduce((sum, request) => sum + request.stages_ms[key], 0) / requests.length;
  return Object.fromEntries(STAGES.map(({ key }) => [key, mean(key)])) as RequestStages;
}

/** The stage that took the most time. */
export function longestStage(stages: RequestStages): (typeof STAGES)[number] {
  return STAGES.reduce((a, b) => (stages[b.key] > stages[a.key] ? b : a));
}

/** The model that had a request, or that a rejected one asked for: `name:version`, `name`, or nothing. */
export const modelText = ({ model, version }: Pick<RequestView, "model" | "version">): string => (model == null ? "–" : version == null ? model : `${model}:${version}`);

/** The name of the key that a request came with; its id if the key was deleted. */
export const keyText = ({ key_name, key }: Pick<RequestView, "key_name" | "key">): string => key_name ?? key ?? "";

/** The reason for an end without an answer, with the status that a rejected request was answered with. */
export const whyText = ({ status, reason }: Pick<RequestView, "status" | "reason">): string => [status, reason].filter((part) => part != null).join(": ");

export interface Bin {
  from: number;
  to: number;
  count: number;
}

/** A histogram from 0 to 1.3 times `limit`, or further if more than a hundredth of the values is above; the last bin has all that are larger. */
export function histogram(values: readonly number[], bins: number, limit: number): Bin[] {
  const sorted = [...values].sort((a, b) => a - b);
  const most = Math.max(limit * 1.3, (sorted[Math.floor(0.99 * (sorted.length - 1))] ?? 0) * 1.05) || 1;
  const width = most / bins;
  const found = Array.from({ length: bins }, (_, i) => ({ from: i * width, to: (i + 1) * width, count: 0 }));
  for (const value of values) {
    const bin = found[Math.min(bins - 1, Math.max(0, Math.floor(value / width)))];
    if (bin) bin.count += 1;
  }
  return found;
}

/** How often each number occurs, from 1 to the largest, at least to `least`. */
export function tally(values: readonly number[], least: number): number[] {
  const counts = new Array<number>(values.reduce((a, b) => Math.max(a, b), least)).fill(0);
  for (const value of values) if (value >= 1) counts[value - 1] = (counts[value - 1] ?? 0) + 1;
  return counts;
}

/** The part of the requests that ended which were in time; null if none ended. What is still in flight has missed nothing. */
export function shareInTime({ goodput_rps, refused_rps, late_rps, failed_rps = 0 }: Pick<TotalGoodput, "goodput_rps" | "refused_rps" | "late_rps" | "failed_rps">): number | null {
  const ended = goodput_rps + refused_rps + late_rps + failed_rps;
  return ended > 0 ? goodput_rps / ended : null;
}
