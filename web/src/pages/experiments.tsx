/** The committed results of the simulator in the settings of the thesis: policies side by side. */

import { useMemo, useState } from "react";
import { getText } from "../api/client";
import { parseCsv } from "../csv";
import { fixed, percent, rate } from "../format";
import { useLoaded } from "../ui/hooks";
import { Card, Field, Loading, Page, Problem } from "../ui/parts";
import { type Column, Table } from "../ui/table";

/** The files that the gateway serves, with what they vary. */
const EXPERIMENTS: readonly { file: string; title: string }[] = [
  { file: "6.1", title: "Figure 6.1: five vision models at 500 requests/s each, by GPUs" },
  { file: "6.10", title: "Figure 6.10: two vision and two language models, by GPUs" },
  { file: "6.15", title: "Figure 6.15: five vision models on four GPUs, by load and SLO" },
  { file: "A.1", title: "Figure A.1: five vision models, with and without MPS shares" },
  { file: "A.2", title: "Figure A.2: five vision models at 1,000 requests/s each, by GPUs" },
  { file: "A.3", title: "Figure A.3: vision and language models on four GPUs, by load and SLO" },
  { file: "bursts", title: "Arrivals in bursts" },
  { file: "hidden-interference", title: "Interference that no policy was told of" },
];

export interface Run {
  setting: string;
  policy: string;
  goodput: number;
  offered: number;
  predicted: number | null;
  replicas: string;
  devices: string;
}

/** The runs of one world, part and discipline. */
export function runsOf(rows: readonly Record<string, string>[], world: string, part: string, discipline: string): Run[] {
  return rows
    .filter((row) => row["world"] === world && (row["part"] ?? "") === part && row["discipline"] === discipline)
    .map((row) => ({
      setting: row["setting"] ?? "",
      policy: row["policy"] ?? "",
      goodput: Number(row["goodput_rps"]),
      offered: Number(row["offered_rps"]),
      predicted: row["predicted_goodput_rps"] ? Number(row["predicted_goodput_rps"]) : null,
      replicas: row["replicas"] ?? "",
      devices: row["devices_used"] ?? "",
    }));
}

const unique = (values: readonly (string | undefined)[]): string[] => [...new Set(values.map((value) => value ?? ""))];

export function Experiments() {
  const [file, setFile] = useState("6.1");
  const loaded = useLoaded(file, (signal) => getText(`/experiments/${file}.csv`, signal));
  return (
    <Page title="Experiments" lead={
        <>
          The settings of the thesis in the simulator, with its V100 profiles. <code>cargo xtask experiments</code> repeats them; <code>docs/experiments</code> explains them.
        </>
      }
    >
      <div className="stack">
        <Field label="Experiment">
          {(id) => (
            <select id={id} value={file} style={{ maxWidth: 460 }} onChange={(event) => setFile(event.target.value)}>
              {EXPERIMENTS.map((experiment) => (
                <option key={experiment.file} value={experiment.file}>
                  {experiment.title}
                </option>
              ))}
            </select>
          )}
        </Field>
        <Problem text={loaded.error} />
        {loaded.data ? <Results key={file} csv={loaded.data} /> : !loaded.error && <Loading what="results" />}
      </div>
    </Page>
  );
}

const COLUMNS: readonly Column<Run>[] = [
  { title: "Policy", cell: (run) => <span className="strong">{run.policy}</span>, sort: (run) => run.policy },
  {
    title: "Goodput",
    cell: (run) => (
      <span className="hbar">
        <span style={{ width: `${Math.min(1, run.goodput / run.offered) * 100}%` }} />
        <em>{percent(run.goodput / run.offered)}</em>
      </span>
    ),
    sort: (run) => run.goodput,
    grow: true,
  },
  { title: "In time", cell: (run) => `${rate(run.goodput)}/s`, sort: (run) => run.goodput, numeric: true },
  { title: "Offered", cell: (run) => `${rate(run.offered)}/s`, sort: (run) => run.offered, numeric: true, from: "tablet" },
  { title: "Predicted", cell: (run) => (run.predicted === null ? "–" : `${rate(run.predicted)}/s`), sort: (run) => run.predicted ?? 0, numeric: true, from: "tablet" },
  { title: "Replicas", cell: (run) => run.replicas, sort: (run) => Number(run.replicas), numeric: true, from: "desktop" },
  { title: "Devices", cell: (run) => run.devices, sort: (run) => Number(run.devices), numeric: true, from: "desktop" },
];

function Results({ csv }: { csv: string }) {
  const rows = useMemo(() => parseCsv(csv), [csv]);
  const worlds = unique(rows.map((row) => row["world"]));
  const [world, setWorld] = useState(worlds[0] ?? "");
  const parts = unique(rows.filter((row) => row["world"] === world).map((row) => row["part"]));
  const [part, setPart] = useState(parts[0] ?? "");
  const shownPart = parts.includes(part) ? part : (parts[0] ?? "");
  const disciplines = unique(rows.map((row) => row["discipline"]));
  const [discipline, setDiscipline] = useState(disciplines.includes("deadline") ? "deadline" : (disciplines[0] ?? ""));
  const runs = useMemo(() => runsOf(rows, world, shownPart, discipline), [rows, world, shownPart, discipline]);
  const settings = unique(runs.map((run) => run.setting));
  const [setting, setSetting] = useState(0);
  const index = Math.min(setting, Math.max(0, settings.length - 1));
  const shown = runs.filter((run) => run.setting === settings[index]);
  const choice = (label: string, values: readonly string[], value: string, set: (value: string) => void) =>
    values.length > 1 && (
      <Field label={label}>
        {(id) => (
          <select id={id} value={value} onChange={(event) => set(event.target.value)}>
            {values.map((v) => (
              <option key={v} value={v}>
                {v || "all"}
              </option>
            ))}
          </select>
        )}
      </Field>
    );
  return (
    <>
      <Card>
        <div className="fields">
          {choice("World", worlds, world, setWorld)}
          {choice("Part", parts, shownPart, setPart)}
          {choice("Discipline", disciplines, discipline, setDiscipline)}
          {settings.length > 1 && (
            <Field label={`Setting: ${settings[index] ?? ""}`}>
              {(id) => <input id={id} type="range" min={0} max={settings.length - 1} value={index} aria-valuetext={settings[index]} onChange={(event) => setSetting(Number(event.target.value))} />}
            </Field>
          )}
        </div>
      </Card>
      <Matrix runs={runs} settings={settings} chosen={index} onChoose={setSetting} />
      <Card className="flush" title={settings[index] || "Policies"} note={`${fixed(shown.length, 0)} policies`}>
        <Table label="Policies" rows={shown} columns={COLUMNS} rowKey={(run) => run.policy} initial={{ title: "Goodput", descending: true }} />
      </Card>
    </>
  );
}

/** The part of the requests in time, for every policy and setting. */
function Matrix({ runs, settings, chosen, onChoose }: { runs: readonly Run[]; settings: readonly string[]; chosen: number; onChoose: (index: number) => void }) {
  const policies = unique(runs.map((run) => run.policy));
  const cell = new Map(runs.map((run) => [`${run.policy}\n${run.setting}`, run.goodput / run.offered]));
  return (
    <Card title="Requests in time" note="percent of those offered">
      <div className="scroll-x" tabIndex={0} role="region" aria-label="Requests in time by policy and setting">
        <table className="compact matrix">
          <thead>
            <tr>
              <th scope="col">Policy</th>
              {settings.map((name, i) => (
                <th key={name} scope="col" className="numeric">
                  <button type="button" className="plain" aria-pressed={i === chosen} onClick={() => onChoose(i)}>
                    {name || "–"}
                  </button>
                </th>
              ))}
            </tr>
          </thead>
          <tbody>
            {policies.map((policy) => (
              <tr key={policy}>
                <th scope="row">{policy}</th>
                {settings.map((name, i) => {
                  const share = cell.get(`${policy}\n${name}`);
                  return (
                    <td key={name} className={`numeric ${i === chosen ? "chosen" : ""}`} style={{ background: share === undefined ? undefined : `color-mix(in srgb, var(--c1) ${Math.round(share * share * 32)}%, transparent)` }}>
                      {share === undefined ? "–" : fixed(share * 100, 1)}
                    </td>
                  );
                })}
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </Card>
  );
}
