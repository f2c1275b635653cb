/** What admins did, in words. */

import type { AuditEntry } from "./api/types";

/** The name of who acted, with its key, and whether the dashboard acted for it. */
export function actorText({ actor }: Pick<AuditEntry, "actor">): string {
  const more = [actor.key_id ? `key ${actor.key_id}` : null, actor.session ? "dashboard" : null].filter((part) => part !== null);
  return more.length === 0 ? actor.name : `${actor.name} (${more.join(", ")})`;
}

/** The fields of a change in a line. */
export function changeText({ change }: Pick<AuditEntry, "change">): string {
  const fields = Object.entries(change).filter(([, value]) => value !== null);
  return fields.map(([name, value]) => `${name} ${typeof value === "string" ? value : JSON.stringify(value)}`).join(", ");
}
