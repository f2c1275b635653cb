import { expect, test } from "vitest";
import type { Finding, IncidentFinding, Subject } from "./api/types";
import { causesAndSymptoms, headline, incidentHref, listWith, pageOf, subjectHref, versionHref } from "./incidents";

const finding = (subject: Subject | null, root: Subject | null): IncidentFinding => {
  const text = { text: "", cause: "", cure: null, evidence: [], victims: [], problem: "", missed_requests: 0, since_ms: null };
  return { finding: { severity: "warning", subject, root, ...text } satisfies Finding, end_ms: null };
};

test("an incident is found by the time of its address, whatever its number is later", () => {
  expect(incidentHref({ id: 3, since_ms: 1_800_000_000_000 })).toBe("#/incidents/3?began=1800000000000");
  expect(listWith(1_800_000_000_000)).toBe("/v1/incidents?since=1800000000000&until=1800000000000");
});

test("the cause stands above its symptoms, also those of the same kind of object", () => {
  const device = finding({ device: "n/0" }, null);
  const victim = finding({ model: "a:1" }, { device: "n/0" });
  const other = finding({ device: "n/1" }, { device: "n/0" });
  expect(causesAndSymptoms({ root: { device: "n/0" }, findings: [device, victim, other] })).toEqual([[device], [victim, other]]);
  expect(headline({ root: { device: "n/0" }, findings: [{ ...device, finding: { ...device.finding, text: "its batches take longer" } }] })).toBe("device n/0: its batches take longer");
  const cluster = finding(null, null);
  expect(causesAndSymptoms({ root: null, findings: [cluster] })).toEqual([[cluster], []]);
  expect(headline({ root: null, findings: [] })).toBe("cluster");
});

test("evidence leads to the page that shows it, in the window of the incident", () => {
  const span = { since: 5, until: 9 };
  expect(pageOf("/v1/requests?outcome=missed&model=m&version=1", span)).toBe("#/timeline?show=requests&outcome=missed&model=m&since=5&until=9");
  expect(pageOf("/v1/models/a%2Fb?version=2", span)).toBe("#/models/a%2Fb?version=2&since=5&until=9");
  expect(pageOf("/v1/nodes", span)).toBe("#/placement");
  expect(pageOf("/v1/unknown", span)).toBe(null);
  expect(versionHref("a:7", span)).toBe("#/models/a?version=7&since=5&until=9");
  expect(subjectHref({ device: "n/0" }, { since: 5 })).toBe("#/placement?device=n%2F0&since=5");
  expect(subjectHref(null, span)).toBe(null);
});
