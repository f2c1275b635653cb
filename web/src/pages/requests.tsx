/** The requests that ended lately: found by how they ended, by model, by id, and one of them with where its time went. All of it is in the address. */

import { useState } from "react";
import { get } from "../api/client";
import type { RequestView } from "../api/types";
import { clock, count, dateAndTime, ms } from "../format";
import { markTime, timeOf, windowText } from "../history";
import { useCluster } from "../live/store";
import { keyText, longestStage, modelText, whyText } from "../requests";
import { useLoaded } from "../ui/hooks";
import { Card, Empty, Loading, Modal, Problem, Search, State } from "../ui/parts";
import { href, modelHref, navigate } from "../ui/route";
import { Stages } from "../ui/stages";
import { type Column, Table } from "../ui/table";
import { Download } from "./trace";

const OUTCOMES = ["missed", "late", "refused", "expired", "lost", "failed", "cancelled", "answered", "rejected"] as const;
/** The number of requests that are listed. */
const LISTED = 1000;

/** The ends that are listed if the address names none: a request that is looked for by its id or key may have ended in any way. */
const usualOutcome = ({ id, key }: Pick<Narrowed, "id" | "key">): string => (id || key ? "all" : "missed");

/** What the list is narrowed to. */
interface Narrowed {
  outcome?: string;
  model?: string;
  id?: string;
  /** The id or the name of an API key. */
  key?: string;
  since?: number | null;
  until?: number | null;
}

/** The address of the list with these values; those that are absent are left out. */
function listHref({ outcome, model, id, key, since, until }: Narrowed, request?: number): string {
  const end = outcome === usualOutcome({ id, key }) ? undefined : outcome;
  return href(["timeline"], { show: "requests", outcome: end, model: model || undefined, id: id || undefined, key: key || undefined, since: since ?? undefined, until: until ?? undefined, request });
}

export function Requests({ query }: { query: URLSearchParams }) {
  const cluster = useCluster();
  const [paused, setPaused] = useState(false);
  const model = query.get("model") ?? "";
  const id = query.get("id") ?? "";
  const key = query.get("key") ?? "";
  const outcome = query.get("outcome") ?? usualOutcome({ id, key });
  const [since, until] = [timeOf(query, "since"), timeOf(query, "until")];
  const narrowed: Narrowed = { outcome, model, id, key, since, until };
  const shown = query.get("request");
  const listed = new URLSearchParams({ limit: String(LISTED) });
  if (outcome !== "all") listed.set("outcome", outcome);
  if (model !== "") listed.set("model", model);
  if (id !== "") listed.set("id", id);
  if (key !== "") listed.set("key", key);
  if (since !== null) listed.set("since", String(since));
  if (until !== null) listed.set("until", String(until));
  const path = `/v1/requests?${listed}`;
  const loaded = useLoaded(path, (signal) => get<RequestView[]>(path, signal), paused ? undefined : 3000);
  const names = [...new Set([...cluster.models.values()].map((m) => m.name))].sort();
  const columns: readonly Column<RequestView>[] = [
    { title: "Arrived", cell: (r) => <a href={listHref(narrowed, r.id)} aria-label={`${clock(r.at_ms)}, request ${r.id}`}>{clock(r.at_ms)}</a>, sort: (r) => r.at_ms },
    { title: "Id", cell: (r) => <span title={r.request_id ?? undefined}>{r.request_id}</span>, sort: (r) => r.request_id ?? "", from: "tablet" },
    { title: "Model", cell: modelText, sort: modelText },
    { title: "Key", cell: keyText, sort: keyText, from: "wide" },
    { title: "End", cell: (r) => <State state={r.outcome} title={r.status == null ? undefined : `status ${r.status}`} />, sort: (r) => r.outcome },
    { title: "Latency", cell: (r) => <span className={r.slo_ms > 0 && r.latency_ms > r.slo_ms ? "over" : ""}>{ms(r.latency_ms)}</span>, sort: (r) => r.latency_ms, numeric: true },
    { title: "SLO", cell: (r) => ms(r.slo_ms || null), sort: (r) => r.slo_ms, numeric: true, from: "tablet" },
    { title: "Mostly", cell: (r) => { const s = longestStage(r.stages_ms); return `${s.name} ${ms(r.stages_ms[s.key])}`; }, from: "tablet" },
    { title: "Batch", cell: (r) => (r.batch ? count(r.batch.rows, "row") : "none"), sort: (r) => r.batch?.rows ?? 0, numeric: true, from: "desktop" },
    { title: "Device", cell: (r) => r.batch?.device ?? "", sort: (r) => r.batch?.device ?? "", from: "desktop" },
    { title: "Why", cell: (r) => <span className="muted" title={whyText(r)}>{whyText(r)}</span>, from: "desktop", grow: true },
  ];
  return (
    <Card
      className="flush"
      title="Requests"
      note={`the newest first, at most ${LISTED.toLocaleString("en")}; the gateway remembers the last 150,000`}
      actions={
        <>
          <Search label="Find a request by its id" placeholder="x-request-id or trace" value={id} onSearch={(text) => navigate(listHref({ model, id: text, key, since, until }))} />
          <Search label="Find requests by their API key" placeholder="key: name or id" value={key} onSearch={(text) => navigate(listHref({ model, id, key: text, since, until }))} />
          <select aria-label="How they ended" value={outcome} style={{ width: "auto" }} onChange={(event) => navigate(listHref({ ...narrowed, outcome: event.target.value }))}>
            {OUTCOMES.map((o) => (
              <option key={o}>{o}</option>
            ))}
            <option>all</option>
          </select>
          <select aria-label="Model" value={model} style={{ width: "auto", maxWidth: 220 }} onChange={(event) => navigate(listHref({ ...narrowed, model: event.target.value }))}>
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
      {(since !== null || until !== null) && (
        <p className="note in-window">
          Only those that arrived {since === null ? `before ${markTime(until ?? 0, Date.now())}` : windowText({ from: since, to: until }, Date.now())}. <a href={listHref({ ...narrowed, since: null, until: null })}>All times</a>
        </p>
      )}
      <Problem text={loaded.error} />
      {loaded.data ? (
        <Table label="Requests" rows={loaded.data} columns={columns} rowKey={(r) => String(r.id)} maxHeight={Math.max(400, innerHeight - 220)} empty={<Empty title={outcome === "missed" ? "No request has missed its SLO." : "There is no such request."} />} />
      ) : (
        !loaded.error && <Loading what="requests" />
      )}
      {shown !== null && <Request number={shown} onClose={() => navigate(listHref(narrowed))} />}
    </Card>
  );
}

function Request({ number, onClose }: { number: string; onClose: () => void }) {
  const path = `/v1/requests/${encodeURIComponent(number)}`;
  const loaded = useLoaded(path, (signal) => get<RequestView>(path, signal));
  return (
    <Modal title={`Request ${number}`} onClose={onClose} wide>
      <div className="modal-body">
        <Problem text={loaded.error} />
        {loaded.data ? <Facts request={loaded.data} /> : !loaded.error && <Loading what="the request" />}
      </div>
    </Modal>
  );
}

function Facts({ request }: { request: RequestView }) {
  const texts = [
    ["Id", request.request_id],
    ["Trace", request.trace_id],
    ["API key", request.key_name ? `${request.key_name} (${request.key})` : request.key],
    ["Address", request.address],
  ] as const;
  const rejected = request.outcome === "rejected";
  const { model, version } = request;
  return (
    <>
      <p>
        <State state={request.outcome} /> after {ms(request.latency_ms)}
        {rejected ? ", before it reached a model" : `, and in time within ${ms(request.slo_ms || null)}`}. {whyText(request)}
      </p>
      {!rejected && <Stages stages={request.stages_ms} label="Where the time went" />}
      <dl className="facts">
        {texts.map(([name, text]) => text && <Fact key={name} name={name} text={text} />)}
        <dt>Model</dt>
        <dd>{model != null && version != null ? <a href={modelHref(model, version)}>{modelText(request)}</a> : modelText(request)}</dd>
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
      {!rejected && (
        <div>
          <Download from={request.at_ms - 1000} to={request.at_ms + request.latency_ms + 1000} text="Trace of the seconds around it" />
        </div>
      )}
    </>
  );
}

function Fact({ name, text }: { name: string; text: string }) {
  return (
    <>
      <dt>{name}</dt>
      <dd>{text}</dd>
    </>
  );
}
