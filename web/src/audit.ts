/** What admins did, in words. */

import type { AuditEntry } from "./api/types";

/** The name of who acted, with its key, and whether the dashboard acted for it. */
export function actorText({ actor }: Pick<AuditEntry, "actor">): string {
  const more = [actor.key_id ? `key ${actor.key_id}` : null, actor.session ? "dashboard" : null].filter((part) => part !== null);
  return more.length === 0 ? actor.name : `${actor.name} (${more.join(", ")})`;
}

/** The fields of a change in a line, with what they replaced. */
export function changeText({ change, before }: Pick<AuditEntry, "change" | "before">): string {
  const old: Record<string, unknown> = before ?? {};
  const fields = Object.entries(change).filter(([name, value]) => value !== null || name in old);
  return fields.map(([name, value]) => (name in old ? `${name} ${valueText(old[name])} → ${valueText(value)}` : `${name} ${valueText(value)}`)).join(", ");
}

const valueText = (value: unknown): string => (value === null ? "none" : typeof value === "string" ? value : JSON.stringify(value));

/** What the acts are narrowed to, as the address and the API name it. */
export interface Narrowed {
  subject?: string;
  actor?: string;
  action?: string;
  since?: string;
  until?: string;
}

const NAMES = ["subject", "actor", "action", "since", "until"] as const;

/** Reads what an address narrows the acts to. */
export const narrowedBy = (query: URLSearchParams): Narrowed => Object.fromEntries(NAMES.flatMap((name) => (query.get(name) ? [[name, query.get(name)]] : [])));

/** The page of acts before a number, or the newest. */
export function actsPath(narrowed: Narrowed, limit: number, before?: number): string {
  const query = new URLSearchParams({ ...narrowed, limit: String(limit) });
  if (before !== undefined) query.set("before", String(before));
  return `/v1/audit?${query}`;
}

/** The newest page, and the acts of earlier pages below it, each once. */
export function joined(newest: readonly AuditEntry[], earlier: readonly AuditEntry[]): AuditEntry[] {
  const last = newest.at(-1)?.id ?? Infinity;
  return [...newest, ...earlier.filter((act) => act.id < last)];
}
