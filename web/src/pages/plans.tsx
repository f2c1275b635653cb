/** The plans: the current one, what another would bring, and those before. */

import { useEffect, useMemo, useState } from "react";
import { call, get } from "../api/client";
import type { ForecastView, PlacementView, PlanDiff, PlanPreview, PlanSummary, PlanView, PolicyView } from "../api/types";
import { count, dateAndTime, fixed, ms, percent, rate, span } from "../format";
import { type ClusterState, keyOf } from "../live/state";
import { store, useCluster } from "../live/store";
import { placed, type Profiles } from "../placement";
import { useAction, useLoaded, useMayChange } from "../ui/hooks";
import { PlacementMap } from "../ui/map";
import { Card, Confirm, Empty, Field, Figure, Loading, Modal, Page, Problem } from "../ui/parts";
import { href, modelHref, useRoute } from "../ui/route";
import { type Column, Table } from "../ui/table";
import { addedModels, baseRate, type ModelChange, nameLike, newestVersions, NOTHING, previewOf, readWhatIf, type WhatIf } from "../whatif";
import { useProfiles } from "./placement";

/** The time in milliseconds without a change after which a preview is asked for. */
const SETTLE = 250;

export function Plans() {
  const { query } = useRoute();
  const generation = query.get("plan");
  return (
    <Page title="Plans" lead="What if something were different? Nothing changes until you apply it.">
      <div className="stack">
        <What key={query.get("whatif") ?? ""} from={query.get("whatif")} />
        <History opened={generation === null ? null : Number(generation)} />
      </div>
    </Page>
  );
}

function What({ from }: { from: string | null }) {
  const cluster = useCluster();
  const mayChange = useMayChange();
  const [whatIf, setWhatIf] = useState<WhatIf>(() => readWhatIf(from));
  const [preview, setPreview] = useState<PlanPreview | null>(null);
  const [took, setTook] = useState<number | null>(null);
  const [confirming, setConfirming] = useState(false);
  const request = useMemo(() => JSON.stringify(previewOf(whatIf, cluster.models.values())), [whatIf, cluster.models]);
  const ask = useAction(async (body: string, signal: AbortSignal) => {
    const begin = performance.now();
    let answer: PlanPreview;
    try {
      answer = await call<PlanPreview>("POST", "/v1/plans/preview", JSON.parse(body), signal);
    } catch (error) {
      if (signal.aborted) return;
      throw error;
    }
    setPreview(answer);
    setTook(performance.now() - begin);
  });
  const unchanged = request === "{}";
  useEffect(() => {
    if (unchanged) {
      setPreview(null);
      return;
    }
    const stop = new AbortController();
    const timer = setTimeout(() => void ask.run(request, stop.signal), SETTLE);
    return () => {
      clearTimeout(timer);
      stop.abort();
    };
    // Another plan is another question, too.
  }, [request, cluster.plan?.generation]);
  return (
    <Card
      title="What if …"
      actions={
        <>
          <button type="button" disabled={unchanged} onClick={() => setWhatIf(NOTHING)}>
            Reset
          </button>
          {mayChange && (
            <button type="button" className="primary" disabled={unchanged || !preview} onClick={() => setConfirming(true)}>
              Apply …
            </button>
          )}
        </>
      }
    >
      <div className="grid">
        <div className="w4 stack">
          <Knobs whatIf={whatIf} onChange={setWhatIf} cluster={cluster} />
        </div>
        <div className="w8 stack" aria-live="polite">
          {ask.error && !unchanged && <Problem text={ask.error} />}
          {unchanged ? <Empty title="Nothing is different yet.">Choose another policy, move the load, change a model or add devices: the plan that would come of it appears here.</Empty> : preview ? <Comparison preview={preview} took={took} stale={ask.busy} /> : !ask.error && <Loading what="the plan" />}
        </div>
      </div>
      {confirming && preview && <Apply whatIf={whatIf} preview={preview} onClose={() => setConfirming(false)} onDone={() => (setConfirming(false), setWhatIf(NOTHING))} />}
    </Card>
  );
}

function Knobs({ whatIf, onChange, cluster }: { whatIf: WhatIf; onChange: (whatIf: WhatIf) => void; cluster: ClusterState }) {
  const [search, setSearch] = useState("");
  // Those of nodes that plans may use can be taken away.
  const devices = [...cluster.nodes.values()].flatMap((node) => node.devices.map((device) => ({ kind: device.kind, usable: node.state === "ready" })));
  const kinds = [...new Set(devices.map((device) => device.kind))].sort();
  const usable = (kind: string) => devices.filter((device) => device.kind === kind && device.usable).length;
  const newest = newestVersions(cluster.models.values());
  const models = [...newest.values()].sort((a, b) => a.name.localeCompare(b.name));
  const added = addedModels(whatIf, newest);
  const shown = models.filter((model) => model.name.includes(search)).slice(0, 12);
  const change = (name: string, part: ModelChange) => onChange({ ...whatIf, models: { ...whatIf.models, [name]: { ...whatIf.models[name], ...part } } });
  const chosen = cluster.policy.policies.find((policy) => policy.name === (whatIf.policy || cluster.policy.policy));
  return (
    <>
      <Field label="Policy" hint={chosen && `${chosen.summary} (${chosen.source})`}>
        {(id) => (
          <select id={id} value={whatIf.policy || cluster.policy.policy} onChange={(event) => onChange({ ...whatIf, policy: event.target.value === cluster.policy.policy ? "" : event.target.value })}>
            {cluster.policy.policies.map((policy) => (
              <option key={policy.name}>{policy.name}</option>
            ))}
          </select>
        )}
      </Field>
      <Field label={`All rates × ${fixed(whatIf.load, 2)}`}>
        {(id) => <input id={id} type="range" min={0.1} max={5} step={0.05} value={whatIf.load} aria-valuetext={`${fixed(whatIf.load, 2)} times the declared rates`} onChange={(event) => onChange({ ...whatIf, load: Number(event.target.value) })} />}
      </Field>
      {kinds.map((kind) => (
        <Field key={kind} label={`Devices of kind ${kind}: ${usable(kind)} ${signed(whatIf.devices[kind] ?? 0)}`}>
          {(id) => <input id={id} type="range" min={-usable(kind)} max={16} step={1} value={whatIf.devices[kind] ?? 0} onChange={(event) => onChange({ ...whatIf, devices: { ...whatIf.devices, [kind]: Number(event.target.value) } })} />}
        </Field>
      ))}
      <fieldset className="tight">
        <legend>Models</legend>
        {models.length > 12 && <input type="search" aria-label="Search models" placeholder="Search" value={search} onChange={(event) => setSearch(event.target.value)} />}
        <table className="compact">
          <thead>
            <tr>
              <th scope="col">Model</th>
              <th scope="col">Rate (/s)</th>
              <th scope="col">SLO (ms)</th>
              <th scope="col">In</th>
            </tr>
          </thead>
          <tbody>
            {shown.map((model) => {
              const changed = whatIf.models[model.name];
              return (
                <tr key={model.name}>
                  <td title={model.name} style={{ maxWidth: 120 }}>
                    {model.name}
                  </td>
                  <td>
                    <input aria-label={`Rate of ${model.name} in requests per second`} type="number" min={0} step="any" style={{ width: 72 }} value={changed?.rate ?? Number((baseRate(model) * whatIf.load).toFixed(2))} onChange={(event) => change(model.name, { rate: Number(event.target.value) })} />
                  </td>
                  <td>
                    <input aria-label={`SLO of ${model.name} in milliseconds`} type="number" min={0.001} step="any" style={{ width: 72 }} value={changed?.slo ?? model.slo_ms} onChange={(event) => change(model.name, { slo: Number(event.target.value) })} />
                  </td>
                  <td>
                    <input aria-label={`Include ${model.name}`} type="checkbox" checked={!changed?.removed} onChange={(event) => change(model.name, { removed: !event.target.checked })} />
                  </td>
                </tr>
              );
            })}
            {added.map(({ name, like, rate: ownRate, slo }) => (
              <tr key={name}>
                <td title={`${name}, with the profiles of ${like}`} style={{ maxWidth: 120 }}>
                  {name}
                </td>
                <td>
                  <input aria-label={`Rate of ${name} in requests per second`} type="number" min={0} step="any" style={{ width: 72 }} value={Number(ownRate.toFixed(2))} onChange={(event) => change(name, { rate: Number(event.target.value) })} />
                </td>
                <td>
                  <input aria-label={`SLO of ${name} in milliseconds`} type="number" min={0.001} step="any" style={{ width: 72 }} value={slo} onChange={(event) => change(name, { slo: Number(event.target.value) })} />
                </td>
                <td>
                  <input aria-label={`Include ${name}`} type="checkbox" checked onChange={() => onChange({ ...whatIf, models: Object.fromEntries(Object.entries(whatIf.models).filter(([other]) => other !== name)) })} />
                </td>
              </tr>
            ))}
          </tbody>
        </table>
        {models.length > 0 && (
          <Field label="Add a model like" hint="It is planned with the profiles of that one.">
            {(id) => (
              <select id={id} value="" onChange={(event) => change(nameLike(event.target.value, whatIf, newest), { like: event.target.value })}>
                <option value="" disabled>
                  choose one …
                </option>
                {models.map((model) => (
                  <option key={model.name}>{model.name}</option>
                ))}
              </select>
            )}
          </Field>
        )}
      </fieldset>
    </>
  );
}

const signed = (number: number) => `${number < 0 ? "−" : "+"} ${Math.abs(number)}`;

interface Compared {
  name: string;
  before: ForecastView | undefined;
  after: ForecastView | undefined;
}

const COMPARED: readonly Column<Compared>[] = [
  { title: "Model", cell: (row) => row.name, sort: (row) => row.name },
  { title: "Rate", cell: (row) => `${rate((row.after ?? row.before)?.rate_rps ?? 0)}/s`, sort: (row) => row.after?.rate_rps ?? 0, numeric: true },
  { title: "Now", cell: (row) => (row.before ? `${rate(row.before.predicted_goodput_rps)}/s` : "–"), sort: (row) => row.before?.predicted_goodput_rps ?? 0, numeric: true },
  { title: "Then", cell: (row) => (row.after ? `${rate(row.after.predicted_goodput_rps)}/s` : "–"), sort: (row) => row.after?.predicted_goodput_rps ?? 0, numeric: true },
  { title: "Replicas", cell: (row) => `${row.before?.replicas ?? 0} → ${row.after?.replicas ?? 0}`, numeric: true, from: "tablet" },
  { title: "Short of", cell: (row) => <span className="muted" title={row.after?.shortfall ?? undefined}>{row.after?.shortfall}</span>, from: "desktop", grow: true },
];

function Comparison({ preview, took, stale }: { preview: PlanPreview; took: number | null; stale: boolean }) {
  const { plan, current, diff } = preview;
  const gain = plan.predicted_goodput_rps - (current?.predicted_goodput_rps ?? 0);
  const asked = plan.models.reduce((sum, model) => sum + model.rate_rps, 0);
  const rows = useMemo(() => compare(current?.models ?? [], plan.models), [preview]);
  return (
    <div className="stack" style={{ opacity: stale ? 0.6 : 1 }}>
      <div className="figures">
        <Figure label="Goodput then" value={rate(plan.predicted_goodput_rps)} unit="/s" note={`of ${rate(asked)} asked for`} />
        <Figure label="Now" value={rate(current?.predicted_goodput_rps ?? 0)} unit="/s" note={`${gain >= 0 ? "+" : "−"}${rate(Math.abs(gain))}/s`} tone={gain < -0.05 ? "bad" : gain > 0.05 ? "good" : "quiet"} />
        <Figure label="Bound" value={rate(preview.bound_rps)} unit="/s" note="no plan exceeds it" />
        <Figure label="Replicas" value={fixed(plan.replicas.length, 0)} note={`${diff.added.length} start, ${diff.removed.length} stop, ${diff.kept} stay`} />
        <Figure label="Devices" value={fixed(plan.devices_used, 0)} note={plan.unserved.length > 0 ? `${count(plan.unserved.length, "model")} unserved` : "every model is placed"} tone={plan.unserved.length > 0 ? "warn" : "quiet"} />
        <Figure label="Solved in" value={ms(plan.solve_ms)} note={took === null ? "" : `answered in ${ms(took)}`} />
      </div>
      <div className="card flush">
        <Table label="Forecast by model" rows={rows} columns={COMPARED} rowKey={(row) => row.name} maxHeight={300} />
      </div>
      <Maps titles={["Now", "Then"]} before={current ?? null} after={plan} diff={diff} />
    </div>
  );
}

function compare(before: readonly ForecastView[], after: readonly ForecastView[]): Compared[] {
  const rows = new Map<string, Compared>();
  for (const forecast of before) rows.set(keyOf(forecast), { name: keyOf(forecast), before: forecast, after: undefined });
  for (const forecast of after) rows.set(keyOf(forecast), { name: keyOf(forecast), before: rows.get(keyOf(forecast))?.before, after: forecast });
  return [...rows.values()];
}

const placeOf = (replica: PlacementView) => `${replica.model}:${replica.version} on ${replica.device}, batch ${replica.batch_size}`;

/** Two plans on the map, side by side, with what stops and what starts outlined. */
function Maps({ titles, before, after, diff }: { titles: readonly [string, string]; before: PlanView | null; after: PlanView; diff: PlanDiff }) {
  const cluster = useCluster();
  const profiles = useProfiles();
  const [picked, setPicked] = useState<string | null>(null);
  const nodes = useMemo(() => withAbsent(cluster.nodes, [...(before?.replicas ?? []), ...after.replicas]), [cluster.nodes, before, after]);
  const sides = useMemo(
    () => [
      { title: titles[0], note: "outlined: stops", ...onMap(before, diff.removed, nodes, profiles) },
      { title: titles[1], note: "outlined: starts", ...onMap(after, diff.added, nodes, profiles) },
    ],
    [before, after, diff, nodes, profiles],
  );
  return (
    <div className="fields" style={{ gridTemplateColumns: "repeat(auto-fit, minmax(290px, 1fr))" }}>
      {sides.map(({ title, note, devices, outlined }) => (
        <section key={title} className="stack" style={{ gap: 8 }} aria-label={title}>
          <h3>
            {title} <span className="muted small">{note}</span>
          </h3>
          <PlacementMap devices={devices} picked={picked} onPick={setPicked} outlined={outlined} />
        </section>
      ))}
    </div>
  );
}

/** The devices with the replicas of a plan, running or not, and the identities of those that have changed. */
function onMap(plan: PlanView | null, changed: readonly PlacementView[], nodes: ClusterState["nodes"], profiles: Profiles) {
  const replicas = plan?.replicas.map((replica) => ({ ...replica, id: null })) ?? [];
  const places = new Set(changed.map(placeOf));
  return {
    devices: placed({ models: new Map(), nodes }, plan && { ...plan, replicas }, profiles),
    outlined: new Set(replicas.flatMap((replica, i) => (places.has(placeOf(replica)) ? [`planned-${i}`] : []))),
  };
}

/** The nodes, with the devices of replicas that the cluster does not have: those that a what-if adds, and those that are gone. */
function withAbsent(present: ClusterState["nodes"], replicas: readonly PlacementView[]): ClusterState["nodes"] {
  const known = new Map([...present.values()].flatMap((node) => node.devices.map((device) => [device.id, device] as const)));
  const nodes = new Map(present);
  const like = (kind: string) => [...known.values()].find((device) => device.kind === kind)?.memory_bytes ?? 16 * 2 ** 30;
  for (const replica of replicas) {
    if (known.has(replica.device)) continue;
    const name = replica.device.slice(0, replica.device.indexOf("/"));
    const node = nodes.get(name) ?? { name, state: "ready" as const, agent_version: "", devices: [] };
    if (node.devices.some((device) => device.id === replica.device)) continue;
    const device = { id: replica.device, kind: replica.device_kind, description: "not in the cluster", memory_bytes: like(replica.device_kind), replicas: [] };
    nodes.set(name, { ...node, devices: [...node.devices, device] });
  }
  return nodes;
}

/** Applies what can be applied: the policy, and rates and SLOs of models. Devices come by starting agents. */
function Apply({ whatIf, preview, onClose, onDone }: { whatIf: WhatIf; preview: PlanPreview; onClose: () => void; onDone: () => void }) {
  const cluster = useCluster();
  const body = previewOf(whatIf, cluster.models.values());
  const apply = useAction(async () => {
    if (body.policy) store.adoptPolicy(await call<PolicyView>("PUT", "/v1/policy", { policy: body.policy }));
    for (const { name, rate_rps, slo_ms } of registered) {
      await call("PATCH", `/v1/models/${encodeURIComponent(name)}`, { ...(rate_rps !== undefined && { rate_rps }), ...(slo_ms !== undefined && { slo_ms }) });
    }
    onDone();
  });
  const isAdded = (model: { profile_of?: string | null }) => typeof model.profile_of === "string";
  const registered = (body.models ?? []).filter((model) => !isAdded(model));
  const changes = [
    ...(body.policy ? [`The policy becomes ${body.policy}.`] : []),
    ...registered.map(({ name, rate_rps, slo_ms }) => `${name}: ${[rate_rps !== undefined && rate_rps !== null ? `rate ${rate(rate_rps)}/s` : "", slo_ms ? `SLO ${ms(slo_ms)}` : ""].filter(Boolean).join(", ")}.`),
  ];
  const left = [
    ...(body.models ?? []).filter(isAdded).map(({ name }) => `Register ${name} with its file.`),
    ...(body.devices ?? []).map(({ kind, count: n }) => (n < 0 ? `Drain and stop ${-n} ${kind}.` : `Start an agent with ${n} more ${kind}.`)),
    ...(body.remove ?? []).map((name) => `Remove ${name} on its own page, if you mean it.`),
  ];
  return (
    <Confirm title="Apply these changes?" action="Apply" busy={apply.busy || changes.length === 0} error={apply.error} onConfirm={() => void apply.run()} onClose={onClose}>
      <p>
        {count(preview.diff.added.length, "replica")} start, {preview.diff.removed.length} stop. Old replicas serve until the new ones are ready, where memory holds both.
      </p>
      <ul>
        {changes.slice(0, 12).map((text) => (
          <li key={text}>{text}</li>
        ))}
        {changes.length > 12 && <li>and {changes.length - 12} more</li>}
      </ul>
      {left.length > 0 && (
        <div>
          <p className="strong">Not done here:</p>
          <ul>
            {left.map((text) => (
              <li key={text}>{text}</li>
            ))}
          </ul>
        </div>
      )}
    </Confirm>
  );
}

function History({ opened }: { opened: number | null }) {
  const cluster = useCluster();
  const generation = cluster.plan?.generation ?? 0;
  const loaded = useLoaded(`plans ${generation}`, (signal) => get<PlanSummary[]>("/v1/plans?limit=200", signal));
  const [last, setLast] = useState<PlanSummary[] | null>(null);
  const [shown, setShown] = useState<number | null>(opened);
  useEffect(() => setShown(opened), [opened]);
  useEffect(() => {
    if (loaded.data) setLast(loaded.data);
  }, [loaded.data]);
  const plans = loaded.data ?? last;
  const columns: readonly Column<PlanSummary>[] = [
    {
      title: "Plan",
      cell: (plan) => (
        <button type="button" className="link" onClick={() => setShown(plan.generation)}>
          {plan.generation}
        </button>
      ),
      sort: (plan) => plan.generation,
    },
    { title: "Time", cell: (plan) => dateAndTime(plan.created_unix_ms), sort: (plan) => plan.created_unix_ms, from: "tablet" },
    { title: "Because", cell: (plan) => <span title={plan.reason}>{plan.reason}</span>, grow: true },
    { title: "Policy", cell: (plan) => plan.policy, sort: (plan) => plan.policy, from: "tablet" },
    { title: "Predicted", cell: (plan) => `${rate(plan.predicted_goodput_rps)}/s`, sort: (plan) => plan.predicted_goodput_rps, numeric: true },
    { title: "Came true", cell: (plan) => <CameTrue plan={plan} />, sort: (plan) => cameTrue(plan) ?? -1, numeric: true, from: "tablet" },
    { title: "Replicas", cell: (plan) => fixed(plan.replicas, 0), sort: (plan) => plan.replicas, numeric: true, from: "tablet" },
    { title: "Unserved", cell: (plan) => <span className={plan.unserved_models > 0 ? "over" : ""}>{plan.unserved_models}</span>, sort: (plan) => plan.unserved_models, numeric: true, from: "desktop" },
    { title: "Solved in", cell: (plan) => ms(plan.solve_ms), sort: (plan) => plan.solve_ms, numeric: true, from: "desktop" },
  ];
  return (
    <Card className="flush" title="History" note="open one to see what it changed">
      {plans === null ? (
        <Loading what="plans" />
      ) : (
        <Table label="Plans" rows={plans} columns={columns} rowKey={(plan) => String(plan.generation)} maxHeight={480} empty={<Empty title="There is no plan yet.">The first is made when there are a model and a device.</Empty>} />
      )}
      {shown !== null && <Change generation={shown} before={plans?.find((plan) => plan.generation < shown)?.generation ?? null} onClose={() => setShown(null)} />}
    </Card>
  );
}

/** The part of the requests that a plan expected in time, of those that came, that were answered in time; null if it expected none. */
const cameTrue = ({ outcome }: PlanSummary) => (outcome && outcome.predicted_rps > 0 ? outcome.goodput_rps / outcome.predicted_rps : null);

function CameTrue({ plan }: { plan: PlanSummary }) {
  const part = cameTrue(plan);
  const { outcome } = plan;
  if (part === null || !outcome) return <span className="muted">{outcome ? "no requests" : "–"}</span>;
  const text = `In ${span(outcome.duration_s * 1000)}: ${rate(outcome.goodput_rps)} requests/s in time of ${rate(outcome.predicted_rps)} predicted and ${rate(outcome.offered_rps)} offered`;
  return (
    <span title={text} aria-label={text} className={part < 0.9 ? "over" : ""}>
      {percent(part, 0)}
    </span>
  );
}

/** What a plan changed in the one before it. */
function Change({ generation, before, onClose }: { generation: number; before: number | null; onClose: () => void }) {
  const loaded = useLoaded(`diff ${before} ${generation}`, async (signal) => {
    const plan = await get<PlanView>(`/v1/plans/${generation}`, signal);
    if (before === null) return { plan, replaced: null, diff: { added: plan.replicas, removed: [], kept: 0 } };
    const [replaced, diff] = await Promise.all([get<PlanView>(`/v1/plans/${before}`, signal), get<PlanDiff>(`/v1/plans/${before}/diff/${generation}`, signal)]);
    return { plan, replaced, diff };
  });
  return (
    <Modal title={`Plan ${generation}`} onClose={onClose} wide>
      <div className="modal-body">
        <Problem text={loaded.error} />
        {loaded.data && (
          <>
            <p>{loaded.data.plan.reason}</p>
            <Maps titles={[before === null ? "Before" : `Plan ${before}`, `Plan ${generation}`]} before={loaded.data.replaced} after={loaded.data.plan} diff={loaded.data.diff} />
            <Changes title="Starts" replicas={loaded.data.diff.added} sign="+" />
            <Changes title="Stops" replicas={loaded.data.diff.removed} sign="−" />
            <p className="muted">
              {count(loaded.data.diff.kept, "replica")} stay{loaded.data.diff.kept === 1 ? "s" : ""} {before === null ? "" : `as in plan ${before}`}.
            </p>
            {loaded.data.plan.models.some((model) => model.shortfall) && (
              <>
                <h3>Not fully served</h3>
                <ul className="stack" style={{ gap: 4 }}>
                  {loaded.data.plan.models
                    .filter((model) => model.shortfall)
                    .map((model) => (
                      <li key={keyOf(model)}>
                        <a href={modelHref(model.name, model.version)}>{keyOf(model)}</a> <span className="muted">{model.shortfall}</span>
                      </li>
                    ))}
                </ul>
              </>
            )}
          </>
        )}
        {!loaded.data && !loaded.error && <Loading what="the plan" />}
      </div>
    </Modal>
  );
}

function Changes({ title, replicas, sign }: { title: string; replicas: readonly PlacementView[]; sign: string }) {
  if (replicas.length === 0) return null;
  return (
    <section>
      <h3>
        {title} <span className="muted">{replicas.length}</span>
      </h3>
      <ul>
        {replicas.slice(0, 100).map((replica, i) => (
          <li key={replica.id ?? i} className="row">
            <span className="mono" aria-hidden="true">
              {sign}
            </span>
            <a href={modelHref(replica.model, replica.version)}>
              {replica.model}:{replica.version}
            </a>
            <span className="muted">
              on <a href={href(["placement"], { device: replica.device })}>{replica.device}</a>, batch up to {replica.batch_size}
              {replica.compute_share_pct ? `, share ${fixed(replica.compute_share_pct, 0)} %` : ""}
              {replica.also && replica.also.length > 0 ? `, one worker with ${replica.also.join(", ")}` : ""}
            </span>
          </li>
        ))}
      </ul>
    </section>
  );
}
