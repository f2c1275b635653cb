/** All versions of all models in a table, and the registration of another. */

import { useMemo, useState } from "react";
import type { FamilyGoodput, ModelGoodput, ModelView } from "../api/types";
import { count, fixed, ms, rate } from "../format";
import { type ClusterState, keyOf, type Second } from "../live/state";
import { useCluster } from "../live/store";
import { Sparkline } from "../ui/charts";
import { Card, Empty, Figure, Page, State } from "../ui/parts";
import { modelHref } from "../ui/route";
import { type Column, Table } from "../ui/table";
import { useMayChange } from "../ui/hooks";
import { Register } from "./register";

interface Row {
  model: ModelView;
  minute: ModelGoodput | undefined;
  history: readonly Second[];
}

export function rowsOf(cluster: ClusterState): Row[] {
  const minute = new Map(cluster.minute?.models.map((goodput) => [keyOf(goodput), goodput]));
  return [...cluster.models.entries()].map(([key, model]) => ({ model, minute: minute.get(key), history: cluster.modelHistory.get(key) ?? [] }));
}

const serving = (model: ModelView): number => model.replicas.filter((replica) => replica.serving).length;

function Quantile({ value, slo }: { value: number | null | undefined; slo: number }) {
  return <span className={(value ?? 0) > slo ? "over" : ""}>{ms(value)}</span>;
}

const COLUMNS: readonly Column<Row>[] = [
  { title: "Model", cell: ({ model }) => <a className="strong" href={modelHref(model.name, model.version)}>{keyOf(model)}</a>, sort: ({ model }) => keyOf(model) },
  { title: "State", cell: ({ model }) => <State state={model.state} title={model.reason ?? undefined} />, sort: ({ model }) => model.state },
  { title: "Goodput", cell: ({ minute }) => `${rate(minute?.goodput_rps ?? 0)}/s`, sort: ({ minute }) => minute?.goodput_rps ?? 0, numeric: true },
  {
    title: "Last 2 min",
    cell: ({ model, history }) => <Sparkline values={history.map((s) => s.goodput)} offered={history.map((s) => s.offered)} label={`Goodput of ${keyOf(model)} in the last two minutes`} />,
    from: "tablet",
  },
  { title: "Offered", cell: ({ minute }) => `${rate(minute?.offered_rps ?? 0)}/s`, sort: ({ minute }) => minute?.offered_rps ?? 0, numeric: true, from: "tablet" },
  { title: "Reserved", cell: ({ model }) => (model.rate_rps == null ? "–" : `${rate(model.rate_rps)}/s`), sort: ({ model }) => model.rate_rps ?? -1, numeric: true, from: "wide" },
  { title: "p50", cell: ({ minute, model }) => <Quantile value={minute?.p50_ms} slo={model.slo_ms} />, sort: ({ minute }) => minute?.p50_ms ?? 0, numeric: true, from: "desktop" },
  { title: "p95", cell: ({ minute, model }) => <Quantile value={minute?.p95_ms} slo={model.slo_ms} />, sort: ({ minute }) => minute?.p95_ms ?? 0, numeric: true, from: "wide" },
  { title: "p99", cell: ({ minute, model }) => <Quantile value={minute?.p99_ms} slo={model.slo_ms} />, sort: ({ minute }) => minute?.p99_ms ?? 0, numeric: true, from: "tablet" },
  { title: "SLO", cell: ({ model }) => ms(model.slo_ms), sort: ({ model }) => model.slo_ms, numeric: true, from: "tablet" },
  { title: "Share", cell: ({ model }) => `${model.share_pct ?? 0} %`, sort: ({ model }) => model.share_pct ?? 0, numeric: true, from: "desktop" },
  { title: "Replicas", cell: ({ model }) => `${serving(model)} / ${model.replicas.length}`, sort: ({ model }) => model.replicas.length, numeric: true, from: "desktop" },
  {
    title: "Variant of",
    cell: ({ model }) => (model.family ? `${model.family}, ${fixed(model.accuracy ?? 0, 1)} %` : ""),
    sort: ({ model }) => `${model.family ?? ""} ${String(100 - (model.accuracy ?? 0)).padStart(8, "0")}`,
    from: "tablet",
  },
  { title: "Why", cell: ({ model }) => <span className="muted" title={model.reason ?? undefined}>{model.reason}</span>, from: "desktop", grow: true },
];

/** The goodput of families, of which any variant may answer. */
function Families({ families }: { families: readonly FamilyGoodput[] }) {
  return (
    <Card title="Families" note="last minute">
      <div className="figures">
        {families.map((family) => (
          <Figure
            key={family.name}
            label={family.name}
            value={rate(family.goodput_rps)}
            unit="/s"
            note={family.accuracy_pct == null ? "no answers" : `${rate(family.accurate_goodput_rps)}/s right: ${fixed(family.accuracy_pct, 1)} %`}
          />
        ))}
      </div>
    </Card>
  );
}

export function Models() {
  const cluster = useCluster();
  const [search, setSearch] = useState("");
  const [registering, setRegistering] = useState(false);
  const rows = useMemo(() => rowsOf(cluster), [cluster]);
  const families = cluster.minute?.families ?? [];
  const inFamily = rows.some(({ model }) => model.family);
  const columns = useMemo(() => COLUMNS.filter((column) => inFamily || column.title !== "Variant of"), [inFamily]);
  const words = search.toLowerCase().split(/\s+/).filter(Boolean);
  const found = words.length === 0 ? rows : rows.filter(({ model }) => words.every((word) => `${keyOf(model)} ${model.family ?? ""} ${model.state} ${model.reason ?? ""}`.toLowerCase().includes(word)));
  const mayChange = useMayChange();
  const register = mayChange && (
    <button type="button" className="primary" onClick={() => setRegistering(true)}>
      Register a model
    </button>
  );
  return (
    <Page
      title="Models"
      lead={`${count(rows.length, "version")}; rates and latencies over the last minute`}
      actions={
        <>
          <input className="search" type="search" placeholder="Name, state or reason" aria-label="Search models" value={search} onChange={(event) => setSearch(event.target.value)} />
          {register}
        </>
      }
    >
      <div className="card flush">
        <Table
          label="Models"
          rows={found}
          columns={columns}
          rowKey={({ model }) => keyOf(model)}
          initial={{ title: "Model" }}
          maxHeight={Math.max(420, innerHeight - 160)}
          empty={
            rows.length === 0 ? (
              <Empty title="No model is registered yet." command="packhorse model register mymodel.json --artifact mymodel.pt --wait">
                Register one here, or from a terminal:
              </Empty>
            ) : (
              <Empty title={`No model matches “${search}”.`} />
            )
          }
        />
      </div>
      {families.length > 0 && <Families families={families} />}
      {registering && <Register onClose={() => setRegistering(false)} />}
    </Page>
  );
}
