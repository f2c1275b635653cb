/** The first page: what is wrong, then how the cluster does. */

import { useMemo } from "react";
import { call, get } from "../api/client";
import type { ModelGoodput, PlanPreview, RequestPoint, RequestView } from "../api/types";
import { count, ms, percent, rate } from "../format";
import { columns, perSecond } from "../history";
import { spanOf } from "../incidents";
import { type ClusterState, findingKey, keyOf } from "../live/state";
import { useCluster } from "../live/store";
import { Lines, type Series } from "../ui/charts";
import { FindingCard } from "../ui/findings";
import { chartMarks, gapsText, Marks, useHistory, WindowPicker } from "../ui/history";
import { useLoaded } from "../ui/hooks";
import { Card, Empty, Figure, Meter, Page, Problem, State, type Tone } from "../ui/parts";
import { shareInTime } from "../requests";
import { href, modelHref } from "../ui/route";
import { type Column, Table } from "../ui/table";

/** The part of a model's requests that should be within the SLO: what is missed beyond it is over the error budget. */
const TARGET = 0.99;

export function Overview() {
  const cluster = useCluster();
  const total = cluster.minute?.total;
  const within = total ? shareInTime(total) : null;
  return (
    <Page title="Overview">
      <div className="stack">
        <Findings cluster={cluster} />
        <div className="figures" aria-label="The last minute">
          <Figure label="Goodput" value={rate(total?.goodput_rps ?? 0)} unit="requests/s" note={`offered ${rate(total?.offered_rps ?? 0)}, last minute`} />
          <Figure label="Within SLO" value={within === null ? "–" : percent(within)} tone={within === null ? "quiet" : toneOfShare(within)} note="of the requests that ended" />
          <Figure label="Late" value={rate(total?.late_rps ?? 0)} unit="requests/s" note="answered too late, or expired" />
          <Figure label="Refused" value={rate(total?.refused_rps ?? 0)} unit="requests/s" note="on arrival" />
          <Figure label="Predicted" value={cluster.plan ? rate(cluster.plan.predicted_goodput_rps) : "–"} unit="requests/s" note={cluster.plan ? `goodput of plan ${cluster.plan.generation}` : "there is no plan yet"} />
        </div>
        <div className="grid">
          <GoodputCard cluster={cluster} />
          <div className="w4 stack">
            <Inventory cluster={cluster} />
            <Missed />
          </div>
        </div>
        <Objectives cluster={cluster} />
      </div>
    </Page>
  );
}

const toneOfShare = (share: number): Tone => (share >= TARGET ? "good" : share >= 0.9 ? "warn" : "bad");

function Findings({ cluster }: { cluster: ClusterState }) {
  if (cluster.findings.length === 0 && cluster.nodes.size > 0) {
    return (
      <p className="all-well" role="status">
        Nothing is wrong. <a href="#/incidents">What was</a>
      </p>
    );
  }
  return (
    <section aria-label="Findings" className="findings">
      {cluster.findings.map((finding) => (
        <FindingCard key={findingKey(finding)} finding={finding} span={spanOf(finding)} />
      ))}
      {cluster.nodes.size === 0 && (
        <Card>
          <Empty title="No node has joined yet." command={`packhorse-agent --gateway ${location.origin}`}>
            Start an agent on every machine whose devices shall serve models:
          </Empty>
        </Card>
      )}
    </section>
  );
}

const SERIES: readonly Series[] = [
  { label: "Offered", colour: "c7", value: rate },
  { label: "Goodput", colour: "c0", fill: true, value: rate },
  { label: "Predicted by the plan", colour: "c1", dash: true, value: rate },
  { label: "Ideal: no plan exceeds it", colour: "c3", dash: true, value: rate },
  { label: "Late", colour: "c2", value: rate },
  { label: "Refused", colour: "c4", value: rate },
];

function GoodputCard({ cluster }: { cluster: ClusterState }) {
  const { view, window, range, error } = useHistory({});
  const { plan } = cluster;
  // The bound of a preview that changes nothing; it is another one with every plan.
  const planned = plan !== null && plan.replicas.length > 0;
  const preview = useLoaded(`bound ${planned} ${plan?.generation}`, async (signal) => (planned ? call<PlanPreview>("POST", "/v1/plans/preview", {}, signal) : null));
  const ideal = preview.data?.bound_rps ?? null;
  const { data, gaps } = useMemo(() => {
    // What was predicted is known of the present plan alone.
    const ofPlan = (value: number | null) => (p: RequestPoint) => (p.plan !== null && p.plan === plan?.generation ? value : null);
    const of = (value: (p: RequestPoint) => number) => (p: RequestPoint) => perSecond(value(p), p);
    return columns(view.requests, view.step_s, [of((p) => p.offered), of((p) => p.in_time), ofPlan(plan?.predicted_goodput_rps ?? null), ofPlan(ideal), of((p) => p.late), of((p) => p.refused)]);
  }, [view, plan, ideal]);
  const marks = useMemo(() => chartMarks(view.marks), [view]);
  return (
    <Card className="w8" title="Goodput" note={gapsText(gaps)} actions={<WindowPicker window={window} board="overview" />}>
      <Problem text={error} />
      <Lines label="Goodput, offered rate, predicted and ideal goodput, late and refused requests per second over time" data={data} series={SERIES} unit="requests/s" x="time" height={300} range={range} marks={marks} />
      <Marks marks={view.marks} />
    </Card>
  );
}

function Inventory({ cluster }: { cluster: ClusterState }) {
  const nodes = [...cluster.nodes.values()];
  const devices = nodes.flatMap((node) => node.devices.map((device) => ({ device, node })));
  const used = devices.filter(({ device }) => device.replicas.length > 0).length;
  const tally = (states: readonly string[]) => [...states.reduce((m, s) => m.set(s, (m.get(s) ?? 0) + 1), new Map<string, number>())];
  const kinds = tally(devices.map(({ device }) => device.kind));
  return (
    <Card title="Cluster" actions={<a href="#/placement">Map</a>}>
      <dl className="facts">
        <dt>Nodes</dt>
        <dd className="row">
          {tally(nodes.map((node) => node.state)).map(([state, n]) => (
            <span key={state} className="row nowrap">
              {n} <State state={state} />
            </span>
          ))}
          {nodes.length === 0 && "none"}
        </dd>
        <dt>Devices</dt>
        <dd>
          {used} of {devices.length} with replicas
        </dd>
        {kinds.map(([kind, n]) => (
          <Kind key={kind} kind={kind} count={n} />
        ))}
        <dt>Models</dt>
        <dd className="row">
          {tally([...cluster.models.values()].map((m) => m.state)).map(([state, n]) => (
            <span key={state} className="row nowrap">
              {n} <State state={state} />
            </span>
          ))}
          {cluster.models.size === 0 && <a href="#/models">register the first</a>}
        </dd>
        <dt>Policy</dt>
        <dd>
          <a href="#/plans">{cluster.policy.policy}</a>, {cluster.policy.discipline}
        </dd>
      </dl>
    </Card>
  );
}

function Kind({ kind, count: n }: { kind: string; count: number }) {
  return (
    <>
      <dt />
      <dd className="muted">
        {n} × {kind}
      </dd>
    </>
  );
}

/** The number of missed requests that are grouped by cause. */
const MISSED = 500;

function Missed() {
  const missed = useLoaded("missed", (signal) => get<RequestView[]>(`/v1/requests?outcome=missed&limit=${MISSED}`, signal), 5000);
  const causes = useMemo(() => {
    const byCause = new Map<string, number>();
    for (const request of missed.data ?? []) {
      const cause = request.reason ? `${request.outcome}: ${request.reason}` : request.outcome;
      byCause.set(cause, (byCause.get(cause) ?? 0) + 1);
    }
    return [...byCause].sort((a, b) => b[1] - a[1]);
  }, [missed.data]);
  return (
    <Card title="Missed requests by cause" note={`the last ${MISSED} at most`} actions={<a href={href(["timeline"], { show: "requests" })}>All</a>}>
      {causes.length === 0 ? (
        <p className="muted">No request has missed its SLO.</p>
      ) : (
        <ul className="stack" style={{ gap: 6 }}>
          {causes.slice(0, 6).map(([cause, n]) => (
            <li key={cause} style={{ display: "grid", gridTemplateColumns: "48px minmax(0, 1fr)", gap: 10 }}>
              <span className="numeric strong">{n}</span>
              <span className="muted" style={{ overflowWrap: "anywhere" }}>{cause}</span>
            </li>
          ))}
        </ul>
      )}
    </Card>
  );
}

interface Objective {
  goodput: ModelGoodput;
  slo: number;
  /** The part of the error budget that is left; negative if it is overdrawn. */
  left: number;
  within: number;
}

function objectives(cluster: ClusterState): Objective[] {
  return (cluster.fiveMinutes?.models ?? [])
    .filter((goodput) => goodput.offered_rps > 0 && cluster.models.has(keyOf(goodput)))
    .map((goodput) => {
      const within = shareInTime(goodput) ?? 1;
      return { goodput, within, left: 1 - (1 - within) / (1 - TARGET), slo: cluster.models.get(keyOf(goodput))?.slo_ms ?? 0 };
    })
    .sort((a, b) => a.left - b.left);
}

const COLUMNS: readonly Column<Objective>[] = [
  { title: "Model", cell: ({ goodput: g }) => <a href={modelHref(g.name, g.version)}>{keyOf(g)}</a>, sort: ({ goodput }) => keyOf(goodput) },
  { title: "Within SLO", cell: (o) => <span className={o.within < TARGET ? "over" : ""}>{percent(o.within, 2)}</span>, sort: (o) => o.within, numeric: true },
  {
    title: "Budget left",
    cell: (o) => (
      <span className="row nowrap" style={{ justifyContent: "flex-end", flexWrap: "nowrap" }}>
        <Meter fraction={o.left} tone={o.left > 0.5 ? "good" : o.left > 0 ? "warn" : "bad"} label={`${percent(Math.max(0, o.left), 0)} of the error budget is left`} />
        <span style={{ width: 62 }}>{o.left < -9.99 ? "< −999 %" : percent(o.left, 0)}</span>
      </span>
    ),
    sort: (o) => o.left,
    numeric: true,
  },
  { title: "Offered", cell: (o) => `${rate(o.goodput.offered_rps)}/s`, sort: (o) => o.goodput.offered_rps, numeric: true, from: "tablet" },
  { title: "p99", cell: (o) => <span className={(o.goodput.p99_ms ?? 0) > o.slo ? "over" : ""}>{ms(o.goodput.p99_ms)}</span>, sort: (o) => o.goodput.p99_ms ?? 0, numeric: true, from: "tablet" },
  { title: "SLO", cell: (o) => ms(o.slo), sort: (o) => o.slo, numeric: true, from: "tablet" },
];

function Objectives({ cluster }: { cluster: ClusterState }) {
  const rows = useMemo(() => objectives(cluster), [cluster.fiveMinutes, cluster.models]);
  return (
    <Card className="flush" title="Error budgets" note={`${percent(TARGET, 0)} within the SLO over five minutes; ${count(rows.length, "model")} with requests`}>
      <Table
        label="Error budgets"
        rows={rows}
        columns={COLUMNS}
        rowKey={(o) => keyOf(o.goodput)}
        initial={{ title: "Budget left" }}
        maxHeight={420}
        empty={<Empty title="No model has had requests in the last five minutes." />}
      />
    </Card>
  );
}
