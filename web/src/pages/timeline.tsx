/** What happened: events in words, requests that missed their SLO, what admins did, and traces of any minute. */

import { useEffect, useMemo, useState } from "react";
import { get, getText } from "../api/client";
import type { AuditEntry, EventView, RequestView } from "../api/types";
import { actorText, changeText } from "../audit";
import { clock, count, dateAndTime, ms, rate, span } from "../format";
import { subjectText } from "../live/state";
import { useCluster } from "../live/store";
import { longestStage } from "../requests";
import { Lines, type Series } from "../ui/charts";
import { useAction, useLoaded } from "../ui/hooks";
import { Card, Empty, Field, Loading, Modal, Page, Problem, State } from "../ui/parts";
import { href, modelHref, useRoute } from "../ui/route";
import { Stages } from "../ui/stages";
import { type Column, Table } from "../ui/table";
import { type Level, linesOf } from "../words";

/** The number of events that are read from before the tab was opened. */
const EARLIER = 1000;
/** The number of lines that are drawn at first, and more of at a time. */
const PAGE = 100;

export function Timeline() {
  const { query } = useRoute();
  const shown = query.get("show");
  const tab = (name: string, on: boolean, to: string) => (
    <a className={`button ${on ? "primary" : ""}`} href={to} aria-current={on ? "page" : undefined}>
      {name}
    </a>
  );
  return (
    <Page
      title="Timeline"
      actions={
        <>
          {tab("Events", shown === null, "#/timeline")}
          {tab("Missed requests", shown === "missed", href(["timeline"], { show: "missed" }))}
          {tab("Audit log", shown === "audit", href(["timeline"], { show: "audit" }))}
          <Trace />
        </>
      }
    >
      {shown === "missed" ? <Missed model={query.get("model")} /> : shown === "audit" ? <Audit /> : <Events />}
    </Page>
  );
}

const SERIES: readonly Series[] = [
  { label: "Offered", colour: "c7", value: rate },
  { label: "Goodput", colour: "c0", fill: true, value: rate },
];

function Events() {
  const cluster = useCluster();
  const earlier = useLoaded("earlier", (signal) => get<EventView[]>(`/v1/events?follow=false&limit=${EARLIER}`, signal));
  const [level, setLevel] = useState<Level>("important");
  const [search, setSearch] = useState("");
  const [most, setMost] = useState(PAGE);
  const events = useMemo(() => {
    const byId = new Map(earlier.data?.map((event) => [event.id, event]));
    for (const event of cluster.events) byId.set(event.id, event);
    return [...byId.values()].sort((a, b) => a.id - b.id);
  }, [earlier.data, cluster.events]);
  const lines = useMemo(() => linesOf(events, level, search.toLowerCase().split(/\s+/).filter(Boolean)), [events, level, search]);
  const data = useMemo(() => [cluster.history.map((s) => s.at), cluster.history.map((s) => s.offered), cluster.history.map((s) => s.goodput)] as [number[], ...number[][]], [cluster.history]);
  return (
    <div className="stack">
      <Card title="Goodput" note="while this tab has been open">
        <Lines label="Goodput while this tab has been open" data={data} series={SERIES} unit="requests/s" x="time" height={130} />
      </Card>
      <Card
        title="Events"
        note={`${count(events.length, "event")} known`}
        actions={
          <>
            <input className="search" type="search" placeholder="Model, node, word" aria-label="Search events" value={search} onChange={(event) => setSearch(event.target.value)} />
            <label className="check">
              <input type="checkbox" checked={level === "all"} onChange={(event) => setLevel(event.target.checked ? "all" : "important")} /> every step
            </label>
          </>
        }
      >
        <Problem text={earlier.error} />
        {lines.length === 0 && (earlier.data ? <Empty title="No event matches." /> : <Loading what="events" />)}
        <ol className="events">
          {lines.slice(0, most).map(({ event, more, pause }) => (
            <li key={event.id} className={pause === null ? "" : "after-pause"}>
              {pause !== null && <p className="pause">{span(pause)} without an event</p>}
              <time dateTime={new Date(event.at_ms).toISOString()} title={dateAndTime(event.at_ms)}>
                {clock(event.at_ms)}
              </time>
              <State state={event.state} title={`${event.kind}, event ${event.id}`} />
              <span>
                <Text event={event} />
                {more > 0 && <span className="muted"> (and {count(more, "time")} before)</span>}
              </span>
            </li>
          ))}
        </ol>
        {lines.length > most && (
          <button type="button" onClick={() => setMost(most + PAGE)}>
            Show {Math.min(PAGE, lines.length - most)} earlier
          </button>
        )}
      </Card>
    </div>
  );
}

/** The sentence of an event, with a link to what it is about. */
function Text({ event }: { event: EventView }) {
  const { subject } = event;
  let target = "";
  if (subject && "model" in subject) target = modelHref(subject.model.slice(0, subject.model.lastIndexOf(":")), Number(subject.model.slice(subject.model.lastIndexOf(":") + 1)));
  if (subject && "node" in subject) target = href(["placement"], { node: subject.node });
  if (subject && "device" in subject) target = href(["placement"], { device: subject.device });
  if (subject && "plan" in subject) target = href(["plans"], { plan: subject.plan });
  return (
    <>
      {event.text}{" "}
      {target !== "" && (
        <a className="small nowrap" href={target}>
          {subjectText(subject)}
        </a>
      )}
    </>
  );
}

const OUTCOMES = ["missed", "late", "refused", "expired", "lost", "failed", "cancelled", "answered"] as const;

function Missed({ model }: { model: string | null }) {
  const cluster = useCluster();
  const [outcome, setOutcome] = useState<string>("missed");
  const [name, setName] = useState(model ?? "");
  const [paused, setPaused] = useState(false);
  const [shown, setShown] = useState<RequestView | null>(null);
  useEffect(() => setName(model ?? ""), [model]);
  const path = `/v1/requests?limit=1000${outcome === "" ? "" : `&outcome=${outcome}`}${name === "" ? "" : `&model=${encodeURIComponent(name)}`}`;
  const loaded = useLoaded(path, (signal) => get<RequestView[]>(path, signal), paused ? undefined : 3000);
  const names = [...new Set([...cluster.models.values()].map((m) => m.name))].sort();
  const columns: readonly Column<RequestView>[] = [
    { title: "Arrived", cell: (r) => <button type="button" className="link" aria-label={`${clock(r.at_ms)}, request ${r.id}`} onClick={() => setShown(r)}>{clock(r.at_ms)}</button>, sort: (r) => r.at_ms },
    { title: "Model", cell: (r) => `${r.model}:${r.version}`, sort: (r) => r.model },
    { title: "End", cell: (r) => <State state={r.outcome} />, sort: (r) => r.outcome },
    { title: "Latency", cell: (r) => <span className={r.slo_ms > 0 && r.latency_ms > r.slo_ms ? "over" : ""}>{ms(r.latency_ms)}</span>, sort: (r) => r.latency_ms, numeric: true },
    { title: "SLO", cell: (r) => ms(r.slo_ms || null), sort: (r) => r.slo_ms, numeric: true, from: "tablet" },
    { title: "Mostly", cell: (r) => { const s = longestStage(r.stages_ms); return `${s.name} ${ms(r.stages_ms[s.key])}`; }, from: "tablet" },
    { title: "Batch", cell: (r) => (r.batch ? count(r.batch.rows, "row") : "none"), sort: (r) => r.batch?.rows ?? 0, numeric: true, from: "desktop" },
    { title: "Device", cell: (r) => r.batch?.device ?? "", sort: (r) => r.batch?.device ?? "", from: "desktop" },
    { title: "Why", cell: (r) => <span className="muted" title={r.reason ?? undefined}>{r.reason}</span>, from: "desktop", grow: true },
  ];
  return (
    <Card
      className="flush"
      title="Requests"
      note="the newest first, at most 1,000; the gateway remembers the last 160,000"
      actions={
        <>
          <select aria-label="How they ended" value={outcome} style={{ width: "auto" }} onChange={(event) => setOutcome(event.target.value)}>
            {OUTCOMES.map((o) => (
              <option key={o}>{o}</option>
            ))}
            <option value="">all</option>
          </select>
          <select aria-label="Model" value={name} style={{ width: "auto", maxWidth: 220 }} onChange={(event) => setName(event.target.value)}>
            <option value="">all models</option>
            {names.map((n) => (
              <option key={n}>{n}</option>
            ))}
          </select>
          <label className="check">
            <input type="checkbox" checked={paused} onChange={(event) => setPaused(event.target.checked)} /> pause
          </label>
        </>
      }
    >
      <Problem text={loaded.error} />
      {loaded.data ? (
        <Table label="Requests" rows={loaded.data} columns={columns} rowKey={(r) => String(r.id)} maxHeight={Math.max(400, innerHeight - 220)} empty={<Empty title={outcome === "missed" ? "No request has missed its SLO." : "There is no such request."} />} />
      ) : (
        !loaded.error && <Loading what="requests" />
      )}
      {shown && <Request request={shown} onClose={() => setShown(null)} />}
    </Card>
  );
}

function Request({ request, onClose }: { request: RequestView; onClose: () => void }) {
  return (
    <Modal title={`Request ${request.id}`} onClose={onClose} wide>
      <div className="modal-body">
        <p>
          <State state={request.outcome} /> after {ms(request.latency_ms)}, with an SLO of {ms(request.slo_ms || null)}. {request.reason}
        </p>
        <Stages stages={request.stages_ms} label="Where the time went" />
        <dl className="facts">
          <dt>Model</dt>
          <dd>
            <a href={modelHref(request.model, request.version)}>
              {request.model}:{request.version}
            </a>
          </dd>
          <dt>Arrived</dt>
          <dd>{dateAndTime(request.at_ms)}</dd>
          <dt>Batch</dt>
          <dd>{request.batch ? `${request.batch.id}, ${count(request.batch.rows, "row")}, ${request.rows} of them of this request` : "it was in none"}</dd>
          {request.batch?.device && (
            <>
              <dt>Device</dt>
              <dd>
                <a href={href(["placement"], { device: request.batch.device })}>{request.batch.device}</a>, replica {request.batch.replica}
              </dd>
            </>
          )}
        </dl>
        <div>
          <Download from={request.at_ms - 1000} to={request.at_ms + request.latency_ms + 1000} text="Trace of the seconds around it" />
        </div>
      </div>
    </Modal>
  );
}

/** The number of acts that are read at a time. */
const ACTS = 200;

const ACT_COLUMNS: readonly Column<AuditEntry>[] = [
  { title: "When", cell: (e) => dateAndTime(e.at_ms), sort: (e) => e.id },
  { title: "Who", cell: (e) => actorText(e), sort: actorText },
  { title: "From", cell: (e) => e.actor.address, sort: (e) => e.actor.address ?? "", from: "desktop" },
  { title: "Act", cell: (e) => e.action, sort: (e) => e.action },
  { title: "Subject", cell: (e) => e.subject, sort: (e) => e.subject ?? "", from: "tablet" },
  { title: "Change", cell: (e) => <span className="muted" title={changeText(e)}>{changeText(e)}</span>, from: "tablet", grow: true },
];

function Audit() {
  const [most, setMost] = useState(ACTS);
  const path = `/v1/audit?limit=${most}`;
  const loaded = useLoaded(path, (signal) => get<AuditEntry[]>(path, signal), 5000);
  const more = loaded.data !== null && loaded.data.length === most && most < 1000;
  return (
    <Card className="flush" title="Audit log" note="what admins did, the newest first">
      <Problem text={loaded.error} />
      {loaded.data ? (
        <Table label="Audit log" rows={loaded.data} columns={ACT_COLUMNS} rowKey={(e) => String(e.id)} maxHeight={Math.max(400, innerHeight - 220)} empty={<Empty title="No admin has changed anything." />} />
      ) : (
        !loaded.error && <Loading what="the audit log" />
      )}
      {more && (
        <button type="button" onClick={() => setMost(Math.min(1000, most + ACTS))}>
          Show earlier ones
        </button>
      )}
    </Card>
  );
}

/** Saves a trace as a file; the token is in a header, so a plain link would not do. */
function Download({ from, to, text, primary = false }: { from: number; to: number; text: string; primary?: boolean }) {
  const save = useAction(async () => {
    const trace = await getText(`/v1/trace?from_ms=${Math.round(from)}&to_ms=${Math.round(to)}`);
    const url = URL.createObjectURL(new Blob([trace], { type: "application/json" }));
    const link = document.createElement("a");
    link.href = url;
    link.download = `packhorse-${new Date(from).toISOString().replace(/[:.]/g, "-")}.json`;
    link.click();
    URL.revokeObjectURL(url);
  });
  return (
    <>
      <button type="button" className={primary ? "primary" : ""} disabled={save.busy} onClick={() => void save.run()}>
        {text}
      </button>
      <Problem text={save.error} />
    </>
  );
}

/** The value of a field for date and time, in the viewer's zone. */
function local(unixMs: number): string {
  const date = new Date(unixMs);
  return new Date(unixMs - date.getTimezoneOffset() * 60_000).toISOString().slice(0, 19);
}

function Trace() {
  const [open, setOpen] = useState(false);
  const [from, setFrom] = useState("");
  const [seconds, setSeconds] = useState("60");
  const begin = new Date(from).getTime();
  return (
    <>
      <button
        type="button"
        onClick={() => {
          setFrom(local(Date.now() - 60_000));
          setOpen(true);
        }}
      >
        Export a trace
      </button>
      {open && (
        <Modal title="Export a trace" onClose={() => setOpen(false)}>
          <div className="modal-body">
            <p className="muted">Every request and batch of a time window, in Chrome's trace event format, as far back as the gateway remembers. Perfetto and chrome://tracing open it.</p>
            <div className="fields">
              <Field label="From">{(id) => <input id={id} type="datetime-local" step={1} value={from} onChange={(event) => setFrom(event.target.value)} />}</Field>
              <Field label="Length (seconds)">{(id) => <input id={id} type="number" min={1} max={3600} value={seconds} onChange={(event) => setSeconds(event.target.value)} />}</Field>
            </div>
          </div>
          <footer className="modal-foot">{Number.isFinite(begin) && Number(seconds) > 0 && <Download primary from={begin} to={begin + Number(seconds) * 1000} text="Save" />}</footer>
        </Modal>
      )}
    </>
  );
}
