/** What was wrong, from when to when: the list of incidents, and one of them with its cause, its symptoms and the charts of its time. */

import { useMemo } from "react";
import { get } from "../api/client";
import type { Incident, IncidentFinding, RequestPoint } from "../api/types";
import { count, dateAndTime, rate, span as lengthOf } from "../format";
import { around, columns, markTime, perSecond } from "../history";
import { causesAndSymptoms, headline, incidentHref, listWith, subjectHref, type TimeSpan, versionHref } from "../incidents";
import { findingKey, subjectText } from "../live/state";
import { useCluster } from "../live/store";
import { Lines, type Series } from "../ui/charts";
import { FindingCard, SEVERITY } from "../ui/findings";
import { chartMarks, gapsText, Marks, useHistory } from "../ui/history";
import { useLoaded } from "../ui/hooks";
import { Card, Empty, Loading, Page, Problem } from "../ui/parts";
import { href, navigate, useRoute } from "../ui/route";
import { type Column, Table } from "../ui/table";

/** The time in milliseconds between two readings. */
const REFRESH = 5000;
/** The number of incidents that the gateway keeps. */
const KEPT = 128;

export function Incidents({ id }: { id: string | undefined }) {
  const { query } = useRoute();
  const began = Number(query.get("began"));
  return id === undefined ? <All query={query} /> : <One id={Number(id)} began={Number.isFinite(began) ? began : 0} />;
}

const length = ({ since_ms, end_ms }: Incident): number => (end_ms ?? Date.now()) - since_ms;

const missedOf = ({ missed_requests = 0 }: Incident): number => missed_requests;
const modelsOf = ({ missed_by_model = [] }: Incident): number => missed_by_model.length;

const COLUMNS: readonly Column<Incident>[] = [
  { title: "Began", cell: (i) => <a href={incidentHref(i)} aria-label={`Incident ${i.id} of ${dateAndTime(i.since_ms)}`}>{markTime(i.since_ms, Date.now())}</a>, sort: (i) => i.since_ms },
  { title: "Ended", cell: (i) => (i.end_ms == null ? <span className="tag bad">goes on</span> : markTime(i.end_ms, Date.now())), sort: (i) => i.end_ms ?? Infinity, from: "tablet" },
  { title: "Lasted", cell: (i) => lengthOf(length(i)), sort: length, numeric: true, from: "tablet" },
  { title: "Severity", cell: (i) => <span className={`tag ${SEVERITY[i.severity]}`}>{i.severity}</span>, sort: (i) => i.severity, from: "tablet" },
  { title: "Missed", cell: (i) => missedOf(i).toLocaleString("en"), sort: missedOf, numeric: true },
  { title: "Of models", cell: modelsOf, sort: modelsOf, numeric: true, from: "desktop" },
  { title: "Cause", cell: (i) => <span title={headline(i)}>{headline(i)}</span>, sort: headline, grow: true },
];

function All({ query }: { query: URLSearchParams }) {
  const cluster = useCluster();
  const model = query.get("model") ?? "";
  const open = query.get("open") !== null;
  const to = (next: { model: string; open: boolean }) => navigate(href(["incidents"], { model: next.model || undefined, open: next.open ? 1 : undefined }));
  const path = `/v1/incidents${model === "" ? "" : `?model=${encodeURIComponent(model)}`}`;
  const loaded = useLoaded(path, (signal) => get<Incident[]>(path, signal), REFRESH);
  const names = [...new Set([...cluster.models.values()].map((m) => m.name).concat(model || []))].sort();
  const rows = useMemo(() => loaded.data?.filter((i) => !open || i.end_ms == null) ?? null, [loaded.data, open]);
  return (
    <Page title="Incidents" lead="Findings with one cause, from the first of them until the last is over.">
      <Card
        className="flush"
        title="Incidents"
        note={`what goes on first, then what cost the most requests; the newest ${KEPT} since the gateway's start`}
        actions={
          <>
            <select aria-label="Model" value={model} style={{ width: "auto", maxWidth: 220 }} onChange={(event) => to({ model: event.target.value, open })}>
              <option value="">all models</option>
              {names.map((n) => (
                <option key={n}>{n}</option>
              ))}
            </select>
            <label className="check">
              <input type="checkbox" checked={open} onChange={(event) => to({ model, open: event.target.checked })} /> that go on
            </label>
          </>
        }
      >
        <Problem text={loaded.error} />
        {rows ? (
          <Table label="Incidents" rows={rows} columns={COLUMNS} rowKey={(i) => String(i.id)} maxHeight={Math.max(400, innerHeight - 260)} empty={<Empty title={open ? "No incident goes on." : "There was no incident."} />} />
        ) : (
          !loaded.error && <Loading what="incidents" />
        )}
      </Card>
    </Page>
  );
}

function One({ id, began }: { id: number; began: number }) {
  const path = listWith(began);
  const loaded = useLoaded(path, (signal) => get<Incident[]>(path, signal), REFRESH);
  const incident = loaded.data?.find((one) => one.id === id);
  if (incident) return <Shown incident={incident} />;
  return (
    <Page title={`Incident ${id}`} actions={<a className="button" href="#/incidents">All incidents</a>}>
      <Problem text={loaded.error} />
      {loaded.data ? (
        <Card>
          <Empty title="The gateway does not remember this incident.">
            It keeps the newest {KEPT} since its start.
            {began > 0 && (
              <>
                {" "}
                <a href={href(["timeline"], { ...around(began, began, Date.now()) })}>Charts around {dateAndTime(began)}</a>
              </>
            )}
          </Empty>
        </Card>
      ) : (
        !loaded.error && <Loading what="the incident" />
      )}
    </Page>
  );
}

function Shown({ incident }: { incident: Incident }) {
  const { id, root, since_ms, end_ms, missed_requests = 0 } = incident;
  const now = Date.now();
  const span = around(since_ms, end_ms, now);
  const [causes, symptoms] = causesAndSymptoms(incident);
  const target = subjectHref(root, span);
  return (
    <Page
      title={`Incident ${id}`}
      lead={
        <>
          <span className={`tag ${SEVERITY[incident.severity]}`}>{incident.severity}</span> {target ? <a href={target}>{subjectText(root)}</a> : subjectText(root)},{" "}
          {end_ms == null ? `since ${markTime(since_ms, now)} and going on` : `${markTime(since_ms, now)} to ${markTime(end_ms, now)}`} ({lengthOf(length(incident))});{" "}
          {missed_requests === 0 ? "no request missed its SLO" : `${count(missed_requests, "request")} missed their SLO`}.
        </>
      }
      actions={
        <>
          <a className="button" href={href(["timeline"], { show: "requests", ...span })}>
            Missed requests
          </a>
          <a className="button" href={href(["timeline"], { ...span })}>
            Timeline
          </a>
          <a className="button" href="#/incidents">
            All incidents
          </a>
        </>
      }
    >
      <div className="stack">
        <Group title="Cause" findings={causes} span={span} />
        <Group title="What it causes" findings={symptoms} span={span} />
        <Chart incident={incident} span={span} />
        <MissedByModel incident={incident} span={span} />
      </div>
    </Page>
  );
}

function Group({ title, findings, span }: { title: string; findings: readonly IncidentFinding[]; span: TimeSpan }) {
  if (findings.length === 0) return null;
  return (
    <section className="findings" aria-label={title}>
      <h2>{title}</h2>
      {findings.map(({ finding, end_ms }) => (
        <FindingCard key={findingKey(finding)} finding={finding} span={span} end={end_ms ?? null} open />
      ))}
    </section>
  );
}

const SERIES: readonly Series[] = [
  { label: "Offered", colour: "c7", value: rate },
  { label: "Goodput", colour: "c0", fill: true, value: rate },
  { label: "Missed", colour: "bad", value: rate },
];

/** The requests of the model with which it began, or of all models, around the incident. */
function Chart({ incident: { root }, span }: { incident: Incident; span: TimeSpan }) {
  const version = root && "model" in root ? root.model : null;
  const at = version?.lastIndexOf(":") ?? 0;
  const which = version === null ? {} : { model: version.slice(0, at), version: Number(version.slice(at + 1)) };
  const { view, range, error } = useHistory(which, { name: null, from: span.since ?? 0, to: span.until ?? null });
  const { data, gaps } = useMemo(() => {
    const of = (value: (p: RequestPoint) => number) => (p: RequestPoint) => perSecond(value(p), p);
    return columns(view.requests, view.step_s, [of((p) => p.offered), of((p) => p.in_time), of((p) => p.missed)]);
  }, [view]);
  const marks = useMemo(() => chartMarks(view.marks), [view]);
  const title = version === null ? "Requests of all models" : `Requests of ${version}`;
  return (
    <Card title={title} note={gapsText(gaps)}>
      <Problem text={error} />
      <Lines label={`${title} around the incident`} data={data} series={SERIES} unit="requests/s" x="time" height={180} range={range} marks={marks} />
      <Marks marks={view.marks} />
    </Card>
  );
}

function MissedByModel({ incident: { missed_by_model: models = [] }, span }: { incident: Incident; span: TimeSpan }) {
  if (models.length === 0) return null;
  return (
    <Card title="Whose requests missed their SLO">
      <ul className="stack" style={{ gap: 6 }}>
        {models.map(({ model, requests }) => (
          <li key={model} style={{ overflowWrap: "anywhere" }}>
            <span className="numeric strong">{requests.toLocaleString("en")}</span> of <a href={versionHref(model, span)}>{model}</a>
            {", "}
            <a href={href(["timeline"], { show: "requests", model: model.slice(0, model.lastIndexOf(":")), ...span })}>those requests</a>
          </li>
        ))}
      </ul>
    </Card>
  );
}
