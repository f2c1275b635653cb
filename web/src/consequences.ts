/** The consequences of changes: what a dry run says, in sentences. */

import type { Consequences } from "./api/types";
import { rate } from "./format";

/** Returns the sentences on what a change takes from models. */
export function sentencesOf({ consequences, consequences_unknown }: Consequences): string[] {
  if (!consequences) return [`What the change takes from other models is not known${consequences_unknown ? `: ${consequences_unknown}` : ""}.`];
  return consequences.map(({ model, before_rps, after_rps, reason }) => `${model} goes from ${rate(before_rps)}/s to ${rate(after_rps)}/s: ${reason}.`);
}

/** Returns true if a change takes something from models other than the one that is changed. */
export function takesFromOthers({ consequences }: Consequences, changed: readonly string[]): boolean {
  return (consequences ?? []).some(({ model }) => !changed.includes(model));
}
