/** The dry run of a change that a dialog asks about. */

import { call } from "../api/client";
import type { Consequences } from "../api/types";
import { useLoaded } from "./hooks";
import { Costs, Loading, Problem } from "./parts";

/** What a change without a body takes from models. The path has no query yet, or ends with one. */
export function DryRun({ method, path, what }: { method: "POST" | "DELETE"; path: string; what: string }) {
  const dry = `${path}${path.includes("?") ? "&" : "?"}dry_run=true`;
  const loaded = useLoaded(`${method} ${dry}`, (signal) => call<Consequences>(method, dry, undefined, signal));
  if (loaded.error !== null) return <Problem text={loaded.error} />;
  return loaded.data === null ? <Loading what={what} /> : <Costs consequences={loaded.data} />;
}
