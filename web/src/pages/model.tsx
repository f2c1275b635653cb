/** One model: its versions and their split, how it is served, and where its requests' time goes. */

import { useMemo, useState } from "react";
import { call, get, getText } from "../api/client";
import type { Consequences, ModelChange, ModelGoodput, ModelView, RateMode, ReplicaView, RequestPoint, RequestView } from "../api/types";
import { takesFromOthers } from "../consequences";
import { parseCsv } from "../csv";
import { bytes, count, fixed, ms, percent, rate, shares } from "../format";
import { columns, perSecond } from "../history";
import { keyOf, profilesKey } from "../live/state";
import { store, useCluster } from "../live/store";
import { histogram, longestStage, meanStages, shareInTime, tally } from "../requests";
import { Bars, Lines, type Series } from "../ui/charts";
import { DryRun } from "../ui/dry-run";
import { chartMarks, gapsText, Marks, useHistory, WindowPicker } from "../ui/history";
import { useAction, useLoaded, useMayChange } from "../ui/hooks";
import { Card, Confirm, Costs, Empty, Field, Figure, Loading, Modal, NumberField, Page, Problem, State } from "../ui/parts";
import { href, modelHref, navigate, useRoute } from "../ui/route";
import { Stages } from "../ui/stages";
import { type Column, Table } from "../ui/table";
import { DEFAULT_MIN_REPLICAS, DEFAULT_PRIORITY, MIN_REPLICAS_HINT, PRIORITY_HINT, RateModeField, Register, RESERVATION_HINT } from "./register";

/** The number of requests that the distributions are made of. */
const REQUESTS = 2000;

type Dialog = "change" | "version" | "remove" | null;

export function Model({ name }: { name: string }) {
  const cluster = useCluster();
  const mayChange = useMayChange();
  const asked = Number(useRoute().query.get("version"));
  const versions = [...cluster.models.values()].filter((model) => model.name === name).sort((a, b) => b.version - a.version);
  const model = versions.find((version) => version.version === asked) ?? versions[0];
  const [dialog, setDialog] = useState<Dialog>(null);
  const close = () => setDialog(null);
  if (!model) {
    return (
      <Page title={name}>
        <Empty title={`There is no model ${name}.`}>
          It may have been removed. <a href="#/models">All models</a>
        </Empty>
      </Page>
    );
  }
  const minute = cluster.minute?.models.find((goodput) => keyOf(goodput) === keyOf(model));
  return (
    <Page
      title={
        <>
          {model.name} <span className="muted">version {model.version}</span>
        </>
      }
      lead={
        <>
          <State state={model.state} /> {model.reason}
        </>
      }
      actions={
        <>
          <a className="button" href={href(["placement"], { model: keyOf(model) })}>
            On the map
          </a>
          {mayChange && (
            <>
              <a className="button" href={href(["try", model.name], { version: model.version })}>
                Try it
              </a>
              <button type="button" onClick={() => setDialog("change")}>
                Change SLO or rate
              </button>
              <button type="button" onClick={() => setDialog("version")}>
                New version
              </button>
              <button type="button" className="danger outline" onClick={() => setDialog("remove")}>
                Remove
              </button>
            </>
          )}
        </>
      }
    >
      <div className="stack">
        <Progress model={model} />
        <Figures model={model} minute={minute} />
        <div className="grid stretch">
          <Past model={model} />
          <Versions versions={versions} shown={model} />
        </div>
        <Requests model={model} />
        <Replicas model={model} />
        <div className="grid">
          <Profile model={model} />
          <Signature model={model} />
        </div>
        <Kernels model={model} />
      </div>
      {dialog === "change" && <Change model={model} onClose={close} />}
      {dialog === "version" && <Register like={versions[0] ?? model} onClose={close} />}
      {dialog === "remove" && <Remove model={model} last={versions.length === 1} onClose={close} />}
    </Page>
  );
}

/** How far the measurements of a new model are. */
function Progress({ model }: { model: ModelView }) {
  if (model.profiling.length === 0) return null;
  return (
    <div className="notice" role="status">
      {model.profiling.map(({ device_kind, done, total }) => (
        <p key={device_kind}>
          Measuring on {device_kind}: {done} of {total === 0 ? "some" : total} batch sizes.
        </p>
      ))}
    </div>
  );
}

function Figures({ model, minute }: { model: ModelView; minute: ModelGoodput | undefined }) {
  const cluster = useCluster();
  const forecast = cluster.plan?.models.find((f) => f.name === model.name && f.version === model.version);
  const queue = useLoaded("queue", async (signal) => queueOf(await getText("/metrics", signal), model), 5000);
  const within = minute ? shareInTime(minute) : null;
  const late = (minute?.p99_ms ?? 0) > model.slo_ms;
  return (
    <div className="figures">
      <Figure label="Goodput" value={rate(minute?.goodput_rps ?? 0)} unit="/s" note={forecast ? `predicted ${rate(forecast.predicted_goodput_rps)} of ${rate(forecast.rate_rps)}` : "not planned"} />
      <Figure label="Within SLO" value={within === null ? "–" : percent(within)} tone={within === null ? "quiet" : within >= 0.99 ? "good" : within >= 0.9 ? "warn" : "bad"} note={`SLO ${ms(model.slo_ms)}`} />
      <Figure label="Rate" value={rate(minute?.offered_rps ?? 0)} unit="/s" note={model.rate_rps == null ? "no reservation" : `reserved ${rate(model.rate_rps)}, ${model.rate ?? "max"}`} />
      <Figure label="p50" value={ms(minute?.p50_ms)} note={`p95 ${ms(minute?.p95_ms)}, last minute`} />
      <Figure label="p99" value={ms(minute?.p99_ms)} tone={late ? "bad" : "quiet"} note={late ? "above the SLO" : "within the SLO"} />
      <Figure label="Queue" value={queue.data === null ? "–" : fixed(queue.data, 0)} unit="requests" note={model.queue_limit ? `at most ${model.queue_limit}` : "waiting now"} />
    </div>
  );
}

/** The requests that wait for a batch, from the metrics. */
function queueOf(metrics: string, model: ModelView): number | null {
  const line = metrics.split("\n").find((l) => l.startsWith("nv_inference_pending_request_count{") && l.includes(`model="${model.name}"`) && l.includes(`version="${model.version}"`));
  return line ? Number(line.slice(line.lastIndexOf(" "))) : null;
}

const GOODPUT: readonly Series[] = [
  { label: "Offered", colour: "c7", value: rate },
  { label: "Goodput", colour: "c0", fill: true, value: rate },
  { label: "Missed", colour: "bad", value: rate },
  { label: "Predicted", colour: "c1", dash: true, value: rate },
];

const LATENCY: readonly Series[] = [
  { label: "p50", colour: "c0", value: ms },
  { label: "p99", colour: "c2", value: ms },
];

/** The goodput and the latencies of a version in the window of the address. */
function Past({ model }: { model: ModelView }) {
  const { plan } = useCluster();
  const { view, window, range, error } = useHistory({ model: model.name, version: model.version });
  const predicted = plan?.models.find((f) => keyOf(f) === keyOf(model))?.predicted_goodput_rps ?? null;
  const goodput = useMemo(() => {
    const of = (value: (p: RequestPoint) => number) => (p: RequestPoint) => perSecond(value(p), p);
    // What was predicted is known of the present plan alone.
    return columns(view.requests, view.step_s, [of((p) => p.offered), of((p) => p.in_time), of((p) => p.missed), (p) => (p.plan !== null && p.plan === plan?.generation ? predicted : null)]);
  }, [view, plan, predicted]);
  const latency = useMemo(() => columns(view.requests, view.step_s, [(p) => p.p50_ms ?? null, (p) => p.p99_ms ?? null]), [view]);
  const marks = useMemo(() => chartMarks(view.marks), [view]);
  const shared = { x: "time", height: 170, range, marks } as const;
  return (
    <Card className="w7" title="Goodput and latency" note={gapsText(goodput.gaps)} actions={<WindowPicker window={window} board="model" model={model.name} />}>
      <Problem text={error} />
      <Lines label={`Goodput of ${keyOf(model)} over time`} data={goodput.data} series={GOODPUT} unit="requests/s" {...shared} />
      <Lines label={`Latency of ${keyOf(model)} over time, with the SLO`} data={latency.data} series={LATENCY} unit="ms" limit={{ value: model.slo_ms, label: `SLO ${ms(model.slo_ms)}` }} {...shared} />
      <Marks marks={view.marks} />
    </Card>
  );
}

/** The versions, what part of the requests each gets, and how to change that. */
function Versions({ versions, shown }: { versions: readonly ModelView[]; shown: ModelView }) {
  const [split, setSplit] = useState<Record<number, string> | null>(null);
  const mayChange = useMayChange();
  const name = shown.name;
  const explicit = versions.find((version) => version.split)?.split;
  const newest = versions.reduce((a, b) => (b.version > a.version ? b : a), shown);
  const rollback = newest.rollback_split;
  const change = useAction(async (act: "split" | "auto" | "rollback" | number) => {
    const path = `/v1/models/${encodeURIComponent(name)}`;
    let answer: ModelView;
    if (act === "rollback") answer = await call<ModelView>("POST", `${path}/rollback`);
    else if (typeof act === "number") answer = await call<ModelView>("POST", `${path}/promote`, { version: act });
    else {
      const shares = Object.fromEntries(Object.entries(split ?? {}).map(([version, share]) => [version, Number(share)]));
      answer = await call<ModelView>("PATCH", path, { split: act === "auto" ? null : shares } satisfies ModelChange);
    }
    store.adoptModel(answer);
    setSplit(null);
  });
  const sum = Object.values(split ?? {}).reduce((total, share) => total + Number(share), 0);
  return (
    <Card
      className="w5"
      title="Versions"
      note={explicit ? "split by hand" : "the newest takes over by itself"}
      actions={
        mayChange && (
          <>
            {versions.length > 1 && split === null && (
              <button type="button" onClick={() => setSplit(Object.fromEntries(versions.map((v) => [v.version, String(v.share_pct ?? 0)])))}>
                Split
              </button>
            )}
            {rollback && (
              <button type="button" disabled={change.busy} onClick={() => void change.run("rollback")}>
                Roll back to {shares(rollback)}
              </button>
            )}
          </>
        )
      }
    >
      <Problem text={change.error} />
      <form
        onSubmit={(event) => {
          event.preventDefault();
          void change.run("split");
        }}
      >
        <div className="scroll-x">
          <table className="compact">
            <thead>
              <tr>
                <th scope="col">Version</th>
                <th scope="col">State</th>
                <th scope="col" className="numeric">
                  Replicas
                </th>
                <th scope="col" className="numeric">
                  Share
                </th>
                <th scope="col">
                  <span className="muted">Requests</span>
                </th>
              </tr>
            </thead>
            <tbody>
              {versions.map((version) => (
                <tr key={version.version}>
                  <td>{version.version === shown.version ? <strong>{version.version}</strong> : <a href={modelHref(name, version.version)}>{version.version}</a>}</td>
                  <td>
                    <State state={version.state} title={version.reason ?? undefined} />
                  </td>
                  <td className="numeric">{version.replicas.length}</td>
                  <td className="numeric">
                    {split ? (
                      <input
                        aria-label={`Share of version ${version.version} in percent`}
                        type="number"
                        min={0}
                        max={100}
                        step={1}
                        style={{ width: 78 }}
                        value={split[version.version] ?? ""}
                        onChange={(event) => setSplit({ ...split, [version.version]: event.target.value })}
                      />
                    ) : (
                      `${version.share_pct ?? 0} %`
                    )}
                  </td>
                  <td>
                    {mayChange && (
                      <button type="button" className="link" disabled={change.busy || versions.length === 1 || (version.share_pct === 100 && explicit?.[String(version.version)] === 100)} onClick={() => void change.run(version.version)}>
                        Promote
                      </button>
                    )}
                  </td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
        {split && (
          <div className="row" style={{ marginTop: 12 }}>
            <span className={sum === 100 ? "muted" : "over"}>Sum {fixed(sum, 0)} %</span>
            <span className="actions" style={{ marginLeft: "auto" }}>
              <button type="button" onClick={() => setSplit(null)}>
                Cancel
              </button>
              <button type="button" onClick={() => void change.run("auto")}>
                Automatic
              </button>
              <button type="submit" className="primary" disabled={sum !== 100 || change.busy}>
                Apply split
              </button>
            </span>
          </div>
        )}
      </form>
    </Card>
  );
}

function Requests({ model }: { model: ModelView }) {
  const path = `/v1/requests?model=${encodeURIComponent(model.name)}&limit=${REQUESTS}`;
  const loaded = useLoaded(path, (signal) => get<RequestView[]>(path, signal), 5000);
  const own = useMemo(() => (loaded.data ?? []).filter((request) => request.version === model.version), [loaded.data, model.version]);
  const answered = useMemo(() => own.filter((request) => request.outcome === "answered" || request.outcome === "late"), [own]);
  const bins = useMemo(() => histogram(answered.map((request) => request.latency_ms), 40, model.slo_ms), [answered, model.slo_ms]);
  const batches = useMemo(() => {
    const byId = new Map(answered.flatMap((request) => (request.batch ? [[request.batch.id, request.batch.rows] as const] : [])));
    return tally([...byId.values()], 8);
  }, [answered]);
  const stages = useMemo(() => meanStages(answered), [answered]);
  if (!loaded.data) return <Loading what="requests" />;
  if (answered.length === 0 || !stages) {
    return (
      <Card title="Requests">
        <Empty title="This version has answered no request lately.">
          <a href={href(["try", model.name], { version: model.version })}>Try it</a>, or send one to <code>/v2/models/{model.name}/infer</code> of the inference listener.
        </Empty>
      </Card>
    );
  }
  const end = bins[bins.length - 1]?.to ?? 1;
  return (
    <div className="grid stretch">
      <Card className="w5" title="Latency" note={`the last ${count(answered.length, "answered request")}`}>
        <Bars
          label={`Histogram of latency with the SLO at ${ms(model.slo_ms)}`}
          bars={bins.map((bin, i) => ({ label: i === bins.length - 1 ? `${ms(bin.from)} or more` : ms(bin.to), value: bin.count, tone: bin.from >= model.slo_ms ? "bad" : "" }))}
          unit="requests"
          mark={{ at: model.slo_ms / end, label: `SLO ${ms(model.slo_ms)}` }}
        />
      </Card>
      <Card className="w4" title="Where the time goes" note={`mostly ${longestStage(stages).name}`} actions={<a href={href(["timeline"], { show: "requests", model: model.name })}>Missed requests</a>}>
        <Stages stages={stages} label="Mean time of a request" />
      </Card>
      <Card className="w3" title="Batch sizes" note="rows per batch">
        <Bars label="Histogram of batch sizes" bars={batches.map((value, i) => ({ label: String(i + 1), value }))} unit="batches" />
      </Card>
    </div>
  );
}

const PLACES = { resident: "on the device", warm: "ready to be copied", cold: "in its file only" };

const REPLICAS: readonly Column<ReplicaView>[] = [
  { title: "Replica", cell: (r) => <span className="mono">{r.id}</span>, sort: (r) => r.id },
  { title: "State", cell: (r) => (r.serving ? <State state="serving" /> : <State state={r.state ?? "planned"} title={r.reason ?? undefined} />), sort: (r) => (r.serving ? "serving" : (r.state ?? "")) },
  { title: "Device", cell: (r) => <a href={href(["placement"], { device: r.device })}>{r.device}</a>, sort: (r) => r.device },
  { title: "Kind", cell: (r) => r.device_kind, sort: (r) => r.device_kind, from: "desktop" },
  { title: "Largest batch", cell: (r) => fixed(r.capacity?.batch_size ?? r.batch_size, 0), sort: (r) => r.batch_size, numeric: true, from: "tablet" },
  { title: "Compute share", cell: (r) => (r.compute_share_pct ? `${fixed(r.compute_share_pct, 0)} %` : "no limit"), sort: (r) => r.compute_share_pct ?? 100, numeric: true, from: "tablet" },
  { title: "Memory", cell: (r) => bytes(r.memory_bytes), sort: (r) => r.memory_bytes ?? 0, numeric: true, from: "tablet" },
  { title: "Process", cell: (r) => (r.worker === "pool" ? "with others" : "its own"), sort: (r) => r.worker ?? "own", from: "desktop" },
  { title: "Weights", cell: (r) => PLACES[r.weights?.residency ?? "resident"], sort: (r) => r.weights?.residency ?? "resident", from: "desktop" },
  { title: "Restarts", cell: (r) => fixed(r.restarts, 0), sort: (r) => r.restarts, numeric: true, from: "tablet" },
  { title: "Why", cell: (r) => <span className="muted">{r.reason}</span>, from: "desktop", grow: true },
];

function Replicas({ model }: { model: ModelView }) {
  return (
    <Card className="flush" title="Replicas">
      <Table label="Replicas" rows={model.replicas} columns={REPLICAS} rowKey={(r) => r.id} maxHeight={360} empty={<Empty title="This version has no replica.">{model.reason}</Empty>} />
    </Card>
  );
}

const CURVE: readonly Series[] = [
  { label: "Latency", colour: "c0", points: true, value: (v) => ms(v) },
];
const THROUGHPUT: readonly Series[] = [{ label: "Throughput", colour: "c1", points: true, value: rate }];

/** Latency and throughput over the batch size, measured or estimated. */
function Profile({ model }: { model: ModelView }) {
  const path = `/v1/profiles?model=${encodeURIComponent(model.name)}`;
  const loaded = useLoaded(`${path} ${profilesKey(model)}`, (signal) => getText(path, signal));
  const [kind, setKind] = useState<string | null>(null);
  const rows = useMemo(() => {
    const own = parseCsv(loaded.data ?? "").filter((row) => row["model"] === keyOf(model) || row["model"] === model.name);
    return own.filter((row) => row["compute_share_pct"] === "" || Number(row["compute_share_pct"]) === 100);
  }, [loaded.data, model]);
  const kinds = [...new Set(rows.map((row) => row["device_kind"] ?? ""))];
  const shown = kind ?? kinds[0];
  const isEstimated = rows.some((row) => row["device_kind"] === shown && row["source"] === "estimated");
  const [latency, throughput] = useMemo(() => {
    const own = rows.filter((row) => row["device_kind"] === shown).map((row) => [Number(row["batch_size"]), Number(row["latency_ms"])] as const);
    own.sort((a, b) => a[0] - b[0]);
    const sizes = own.map(([size]) => size);
    return [[sizes, own.map(([, time]) => time)] as [number[], number[]], [sizes, own.map(([size, time]) => (size / time) * 1000)] as [number[], number[]]];
  }, [rows, shown]);
  return (
    <Card
      className="w8"
      title="Profile"
      note={shown ? `${isEstimated ? "estimated from the operators for" : "measured on"} ${shown}, alone on the whole device` : undefined}
      actions={
        kinds.length > 1 && (
          <select aria-label="Kind of device" value={shown} onChange={(event) => setKind(event.target.value)}>
            {kinds.map((k) => (
              <option key={k}>{k}</option>
            ))}
          </select>
        )
      }
    >
      {rows.length === 0 ? (
        <Empty title="Not measured yet.">A model is measured on every kind of device once, when it is registered or the device joins.</Empty>
      ) : (
        <div className="fields" style={{ gridTemplateColumns: "repeat(auto-fit, minmax(280px, 1fr))" }}>
          <Lines label="Latency over the batch size" data={latency} series={CURVE} unit="ms" x="rows per batch" height={190} limit={{ value: model.slo_ms, label: `SLO ${ms(model.slo_ms)}` }} />
          <Lines label="Throughput over the batch size" data={throughput} series={THROUGHPUT} unit="rows/s" x="rows per batch" height={190} />
        </div>
      )}
    </Card>
  );
}

function Signature({ model }: { model: ModelView }) {
  const shape = (spec: ModelView["inputs"][number]) => `${spec.datatype} [${spec.shape.map((n) => (n < 0 ? "?" : n)).join(", ")}]`;
  return (
    <Card className="w4" title="Signature">
      <dl className="facts">
        {[...model.inputs.map((spec) => ["in", spec] as const), ...model.outputs.map((spec) => ["out", spec] as const)].map(([way, spec]) => (
          <Pair key={way + spec.name} term={`${way} ${spec.name}`}>
            <span className="mono">{shape(spec)}</span>
          </Pair>
        ))}
        <Pair term="Largest batch">{model.max_batch_size === 0 ? "no batch dimension" : `${model.max_batch_size} rows`}</Pair>
        <Pair term="File">
          {bytes(model.artifact_bytes)}, <span className="mono" title={model.artifact}>{model.artifact.slice(0, 19)}…</span>
        </Pair>
        <Pair term="Profiled on">{model.profiled_on.join(", ") || "nothing yet"}</Pair>
        {(model.estimated_on ?? []).length > 0 && <Pair term="Estimated on">{(model.estimated_on ?? []).join(", ")}</Pair>}
        {(model.measuring_failed_on ?? []).length > 0 && <Pair term="Measuring failed on">{(model.measuring_failed_on ?? []).join(", ")}</Pair>}
      </dl>
    </Card>
  );
}

function Pair({ term, children }: { term: string; children: React.ReactNode }) {
  return (
    <>
      <dt>{term}</dt>
      <dd>{children}</dd>
    </>
  );
}

/** The GPU kernels that were recorded when the model was measured. */
function Kernels({ model }: { model: ModelView }) {
  const path = `/v1/profiles/kernels?model=${encodeURIComponent(model.name)}`;
  const loaded = useLoaded(path, (signal) => getText(path, signal));
  const rows = useMemo(() => parseCsv(loaded.data ?? ""), [loaded.data]);
  const [all, setAll] = useState(false);
  const head = Object.keys(rows[0] ?? {});
  if (rows.length === 0) return null;
  return (
    <Card title="Kernels" note={`${count(rows.length, "kernel")}, recorded for one batch of every size`} actions={<button type="button" onClick={() => setAll(!all)}>{all ? "Fewer" : "All"}</button>}>
      <div className="scroll-x">
        <table className="compact">
          <thead>
            <tr>
              {head.map((name) => (
                <th key={name} scope="col">
                  {name.replaceAll("_", " ")}
                </th>
              ))}
            </tr>
          </thead>
          <tbody>
            {rows.slice(0, all ? rows.length : 12).map((row, i) => (
              <tr key={i}>
                {head.map((name) => (
                  <td key={name} className="mono" title={row[name]}>
                    {row[name]}
                  </td>
                ))}
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </Card>
  );
}

function Change({ model, onClose }: { model: ModelView; onClose: () => void }) {
  const [slo, setSlo] = useState(String(model.slo_ms));
  const [reserved, setReserved] = useState(String(model.rate_rps ?? ""));
  const [mode, setMode] = useState<RateMode>(model.rate ?? "max");
  const [priority, setPriority] = useState(String(model.priority ?? DEFAULT_PRIORITY));
  const [minReplicas, setMinReplicas] = useState(String(model.min_replicas ?? DEFAULT_MIN_REPLICAS));
  const [accuracy, setAccuracy] = useState(String(model.accuracy ?? ""));
  const [cache, setCache] = useState(model.cache ?? false);
  const [limit, setLimit] = useState(model.queue_limit ? String(model.queue_limit) : "");
  const [asked, setAsked] = useState<{ body: string; consequences: Consequences } | null>(null);
  const change = useAction(async () => {
    const body: ModelChange = {};
    if (Number(slo) !== model.slo_ms) body.slo_ms = Number(slo);
    if (reserved !== String(model.rate_rps ?? "")) body.rate_rps = reserved === "" ? null : Number(reserved);
    if (mode !== (model.rate ?? "max")) body.rate = mode;
    if (Number(priority) !== (model.priority ?? DEFAULT_PRIORITY)) body.priority = Number(priority);
    if (Number(minReplicas) !== (model.min_replicas ?? DEFAULT_MIN_REPLICAS)) body.min_replicas = Number(minReplicas);
    if (model.family && Number(accuracy) !== model.accuracy) body.accuracy = Number(accuracy);
    if (limit !== (model.queue_limit ? String(model.queue_limit) : "")) body.queue_limit = limit === "" ? null : Number(limit);
    if (cache !== (model.cache ?? false)) body.cache = cache;
    const path = `/v1/models/${encodeURIComponent(model.name)}?version=${model.version}`;
    // The second time for the same change is the answer to what the first one has shown.
    if (asked?.body !== JSON.stringify(body)) {
      const consequences = await call<Consequences>("PATCH", `${path}&dry_run=true`, body);
      const changed = model.family ? [model.name, model.family] : [model.name];
      const asks = takesFromOthers(consequences, changed);
      setAsked(asks ? { body: JSON.stringify(body), consequences } : null);
      if (asks) return;
    }
    store.adoptModel(await call<ModelView>("PATCH", path, body));
    onClose();
  });
  return (
    <Modal title={`Change ${keyOf(model)}`} onClose={onClose}>
      <form
        onSubmit={(event) => {
          event.preventDefault();
          void change.run();
        }}
      >
        <div className="modal-body">
          <div className="fields">
            <NumberField label="SLO" unit="ms" value={slo} min={0.001} max={60000} onChange={setSlo} />
            <NumberField label="Reserved rate" unit="requests/s" hint={RESERVATION_HINT} value={reserved} min={0} optional onChange={setReserved} />
          </div>
          <div className="fields">
            <RateModeField mode={mode} onChange={setMode} />
            <NumberField label="Priority" hint={PRIORITY_HINT} value={priority} min={0} max={9} step={1} onChange={setPriority} />
            <NumberField label="Devices at least" hint={MIN_REPLICAS_HINT} value={minReplicas} min={1} max={16} step={1} onChange={setMinReplicas} />
            <Field label="Queue limit (requests)" hint="empty: the gateway's default">
              {(id) => <input id={id} type="number" min={1} max={1000000} step={1} value={limit} onChange={(event) => setLimit(event.target.value)} />}
            </Field>
            <Field label="Cache of predictions" hint="for a model that answers the same inputs always alike">
              {(id) => (
                <select id={id} value={cache ? "on" : "off"} onChange={(event) => setCache(event.target.value === "on")}>
                  <option value="off">off</option>
                  <option value="on">on</option>
                </select>
              )}
            </Field>
          </div>
          {model.family && (
            <div className="fields">
              <NumberField label={`Accuracy in ${model.family}`} unit="%" value={accuracy} min={0} max={100} onChange={setAccuracy} />
            </div>
          )}
          <p className="hint">
            See first what it would bring: <a href={href(["plans"], { whatif: JSON.stringify({ models: [{ name: model.name, version: model.version, slo_ms: Number(slo), ...(reserved !== "" && { rate_rps: Number(reserved) }) }] }) })}>try it on the plan</a>.
          </p>
        </div>
        {asked && (
          <div className="modal-body">
            <Costs consequences={asked.consequences} />
          </div>
        )}
        <Problem text={change.error} />
        <footer className="modal-foot">
          <button type="button" onClick={onClose}>
            Cancel
          </button>
          <button type="submit" className="primary" disabled={change.busy}>
            {asked ? "Change all the same" : "Change"}
          </button>
        </footer>
      </form>
    </Modal>
  );
}

function Remove({ model, last, onClose }: { model: ModelView; last: boolean; onClose: () => void }) {
  const path = `/v1/models/${encodeURIComponent(model.name)}?version=${model.version}`;
  const remove = useAction(async () => {
    await call<Consequences>("DELETE", path);
    onClose();
    navigate("#/models");
  });
  return (
    <Confirm title={`Remove ${keyOf(model)}?`} action="Remove" busy={remove.busy} error={remove.error} onConfirm={() => void remove.run()} onClose={onClose}>
      <p>
        Its {count(model.replicas.length, "replica")} stop{model.replicas.length === 1 ? "s" : ""}, and its profiles are deleted. {last ? `Requests to ${model.name} get 404 from then on.` : "Other versions stay."}
      </p>
      <DryRun method="DELETE" path={path} what="the plan without the version" />
    </Confirm>
  );
}
