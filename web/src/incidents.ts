/** Incidents: their addresses, their causes and symptoms, and where the evidence of their findings is shown. */

import type { Finding, Incident, IncidentFinding, Subject } from "./api/types";
import { sinceOf } from "./history";
import { subjectText } from "./live/state";
import { href } from "./ui/route";

/** The window of the charts and requests that an address leads to, in milliseconds since 1970. */
export interface TimeSpan {
  since?: number;
  until?: number;
}

/** The address of an incident. Its number is that of one start of the gateway alone: the time tells whether it is still meant. */
export const incidentHref = ({ id, since_ms }: Pick<Incident, "id" | "since_ms">): string => href(["incidents", id], { began: since_ms });

/** The list in which an incident is that an address means, as the API takes it. An incident's begin can move to an earlier time only. */
export const listWith = (began: number): string => `/v1/incidents?since=${began}&until=${began}`;

/** The time window of a finding alone: it ends now. */
export const spanOf = ({ since_ms }: Pick<Finding, "since_ms">): TimeSpan => (since_ms == null ? {} : { since: sinceOf(since_ms) });

/** The page of a model's version, given as `name:version`. */
export function versionHref(model: string, span: TimeSpan = {}): string {
  const at = model.lastIndexOf(":");
  return href(["models", model.slice(0, at)], { version: model.slice(at + 1), ...span });
}

/** The page of what a finding is about, whose charts have this window; null if it is the cluster. */
export function subjectHref(subject: Subject | null | undefined, span: TimeSpan): string | null {
  if (!subject) return null;
  if ("model" in subject) return versionHref(subject.model, span);
  if ("node" in subject) return href(["placement"], { node: subject.node });
  if ("device" in subject) return href(["placement"], { device: subject.device, ...span });
  if ("plan" in subject) return href(["plans"], { plan: subject.plan });
  return href(["placement"]);
}

/** The page that shows what a route of the API has; null if there is none. */
export function pageOf(route: string, span: TimeSpan): string | null {
  const [path = "", search = ""] = route.split("?", 2);
  const query = new URLSearchParams(search);
  const model = /^\/v1\/models\/([^/]+)$/.exec(path);
  const given = (name: string) => query.get(name) ?? undefined;
  if (path === "/v1/requests") return href(["timeline"], { show: "requests", outcome: given("outcome"), model: given("model"), ...span });
  if (path === "/v1/nodes") return href(["placement"]);
  if (model?.[1]) return href(["models", decodeURIComponent(model[1])], { version: given("version"), ...span });
  return null;
}

/** The findings of the root, and those that it causes. */
export function causesAndSymptoms({ root, findings }: Pick<Incident, "root" | "findings">): [IncidentFinding[], IncidentFinding[]] {
  const isCause = ({ finding }: IncidentFinding) => !finding.root && subjectText(finding.subject) === subjectText(root);
  return [findings.filter(isCause), findings.filter((one) => !isCause(one))];
}

/** What an incident is about, in a line. */
export const headline = ({ root, findings }: Pick<Incident, "root" | "findings">): string => [subjectText(root), findings[0]?.finding.text].filter((part) => part !== undefined).join(": ");
