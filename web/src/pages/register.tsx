/** Registration of a model: its file, its signature, its objective. */

import { useState } from "react";
import { call, get, upload } from "../api/client";
import { digestOf } from "../api/sha256";
import type { ModelRegistration, ModelView, RateMode, TensorSpec } from "../api/types";
import { bytes, percent } from "../format";
import { type RegistrationFile, type Rest, restOf, restOfVersion, withFiles } from "../registration";
import { NAME_PATTERN, variantOf } from "../variant";
import { store } from "../live/store";
import { Field, FileField, Meter, Modal, NumberField, Problem } from "../ui/parts";
import { useAction } from "../ui/hooks";
import { modelHref, navigate } from "../ui/route";

const DATATYPES: readonly TensorSpec["datatype"][] = ["FP32", "FP16", "BF16", "FP64", "INT64", "INT32", "INT16", "INT8", "UINT8", "UINT16", "UINT32", "UINT64", "BOOL", "BYTES"];
export const RATE_MODES: readonly RateMode[] = ["max", "declared", "measured", "min"];

/** A tensor as it is typed. */
interface Tensor {
  name: string;
  datatype: TensorSpec["datatype"];
  shape: string;
  rest: Partial<TensorSpec>;
}

/** Returns the dimensions of `-1, 3, 224, 224`; null if it is none. */
export function parseShape(text: string): number[] | null {
  const sizes = text.replace(/[[\]]/g, "").split(",").map((part) => part.trim());
  const numbers = sizes.map(Number);
  return numbers.every((n, i) => sizes[i] !== "" && Number.isInteger(n) && n >= -1) ? numbers : null;
}

function tensorsOf(tensors: readonly Tensor[], what: string): TensorSpec[] {
  return tensors.map(({ name, datatype, shape, rest }) => {
    const sizes = parseShape(shape);
    if (!sizes) throw new Error(`${what} ${name}: expected a shape such as -1, 3, 224, 224`);
    return { ...rest, name, datatype, shape: sizes };
  });
}

const typed = ({ name, datatype, shape, ...rest }: TensorSpec): Tensor => ({ name, datatype, shape: shape.join(", "), rest });

export function Register({ onClose, like }: { onClose: () => void; like?: ModelView }) {
  const [file, setFile] = useState<File | null>(null);
  const [name, setName] = useState(like?.name ?? "");
  const [version, setVersion] = useState(String(like ? like.version + 1 : 1));
  const [slo, setSlo] = useState(String(like?.slo_ms ?? 200));
  const [rate, setRate] = useState(String(like?.rate_rps ?? ""));
  const [mode, setMode] = useState<RateMode>(like?.rate ?? "max");
  const [priority, setPriority] = useState(String(like?.priority ?? DEFAULT_PRIORITY));
  const [minReplicas, setMinReplicas] = useState(String(like?.min_replicas ?? DEFAULT_MIN_REPLICAS));
  const [batch, setBatch] = useState(String(like?.max_batch_size ?? 16));
  const [family, setFamily] = useState(like?.family ?? "");
  const [accuracy, setAccuracy] = useState(String(like?.accuracy ?? ""));
  const [inputs, setInputs] = useState<Tensor[]>(like?.inputs.map(typed) ?? [{ name: "x", datatype: "FP32", shape: "-1, 3, 224, 224", rest: {} }]);
  const [outputs, setOutputs] = useState<Tensor[]>(like?.outputs.map(typed) ?? [{ name: "y", datatype: "FP32", shape: "-1, 1000", rest: {} }]);
  const [rest, setRest] = useState<Rest>({});
  const [beside, setBeside] = useState<File[]>([]);
  const [stage, setStage] = useState<{ text: string; done: number } | null>(null);

  const take = async (files: FileList | null) => {
    setBeside([...beside, ...(files ?? [])]);
    for (const given of files ?? []) {
      if (/\.txt$|^tokenizer.*\.json$/.test(given.name)) continue;
      if (!given.name.endsWith(".json")) {
        setFile(given);
        if (name === "") setName(given.name.replace(/\.[^.]*$/, ""));
        continue;
      }
      const read = JSON.parse(await given.text()) as RegistrationFile;
      setRest(restOf(read));
      if (read.name !== undefined) setName(read.name);
      if (read.version) setVersion(String(read.version));
      if (read.slo_ms !== undefined) setSlo(String(read.slo_ms));
      if (read.rate_rps != null) setRate(String(read.rate_rps));
      if (read.rate) setMode(read.rate);
      if (read.priority != null) setPriority(String(read.priority));
      if (read.min_replicas != null) setMinReplicas(String(read.min_replicas));
      if (read.max_batch_size !== undefined) setBatch(String(read.max_batch_size));
      // The family belongs to all versions.
      if (read.family != null && !like) setFamily(read.family);
      if (read.accuracy != null) setAccuracy(String(read.accuracy));
      if (read.inputs) setInputs(read.inputs.map(typed));
      if (read.outputs) setOutputs(read.outputs.map(typed));
    }
  };
  const reading = useAction(take);
  const register = useAction(async () => {
    if (!file) throw new Error("choose the model's file first");
    const variant = variantOf(family, accuracy);
    const signature = { inputs: tensorsOf(inputs, "input"), outputs: tensorsOf(outputs, "output") };
    const stored = async (what: File) => {
      const digest = await digestOf(what, (done) => setStage({ text: `Computing the SHA-256 of ${what.name}`, done }));
      await upload(`/v1/artifacts/${digest}`, what, (done) => setStage({ text: `Uploading ${what.name}`, done }));
      return digest;
    };
    try {
      // A list of models has no labels.
      const before = like ? restOfVersion(await get<ModelView>(`/v1/models/${encodeURIComponent(like.name)}?version=${like.version}`)) : {};
      const more = await withFiles({ ...before, ...rest }, beside, stored);
      const artifact = await stored(file);
      setStage({ text: "Registering", done: 1 });
      const body: ModelRegistration = { ...more, name, version: Number(version), artifact, max_batch_size: Number(batch), slo_ms: Number(slo), ...(rate !== "" && { rate_rps: Number(rate) }), rate: mode, priority: Number(priority), min_replicas: Number(minReplicas), ...variant, ...signature };
      store.adoptModel(await call<ModelView>("POST", "/v1/models", body));
    } finally {
      setStage(null);
    }
    onClose();
    navigate(modelHref(name, Number(version)));
  });
  return (
    <Modal title={like ? `Register a new version of ${like.name}` : "Register a model"} onClose={onClose} wide>
      <form
        onSubmit={(event) => {
          event.preventDefault();
          void register.run();
        }}
      >
        <div className="modal-body">
          <FileField
            label="Model file"
            hint={file ? `${file.name}, ${bytes(file.size)}` : "TorchScript (.pt) or an AOTInductor package (.pt2), and a registration (.json) that fills this form, with the tokenizer and labels that it names. Drop them here, or choose them."}
            accept=".pt,.pt2,.json,.txt,*/*"
            multiple
            onFiles={(files) => void reading.run(files)}
          />
          <div className="fields">
            <Field label="Name">{(id) => <input id={id} required value={name} disabled={like !== undefined} onChange={(event) => setName(event.target.value)} />}</Field>
            <NumberField label="Version" value={version} min={1} step={1} onChange={setVersion} />
            <NumberField label="Largest batch" hint="0: the model has no batch dimension" value={batch} min={0} max={4096} step={1} onChange={setBatch} />
          </div>
          <div className="fields">
            <NumberField label="SLO" unit="ms" value={slo} min={0.001} max={60000} onChange={setSlo} />
            <NumberField label="Reserved rate" unit="requests/s" hint={RESERVATION_HINT} value={rate} min={0} optional onChange={setRate} />
            <RateModeField mode={mode} onChange={setMode} />
            <NumberField label="Priority" hint={PRIORITY_HINT} value={priority} min={0} max={9} step={1} onChange={setPriority} />
            <NumberField label="Devices at least" hint={MIN_REPLICAS_HINT} value={minReplicas} min={1} max={16} step={1} onChange={setMinReplicas} />
          </div>
          <div className="fields">
            <Field label="Family" hint={like ? "All versions of a model are in the same family." : "Models that answer the same requests; clients use its name like a model's"}>
              {(id) => <input id={id} value={family} pattern={NAME_PATTERN} maxLength={128} required={accuracy !== ""} disabled={like !== undefined} onChange={(event) => setFamily(event.target.value)} />}
            </Field>
            <NumberField label="Accuracy" unit="%" hint="The part of the answers that are right: a family prefers its most accurate model" value={accuracy} min={0} max={100} optional={family === ""} disabled={like !== undefined && family === ""} onChange={setAccuracy} />
          </div>
          <Tensors title="Inputs" tensors={inputs} onChange={setInputs} />
          <Tensors title="Outputs" tensors={outputs} onChange={setOutputs} />
        </div>
        <Problem text={register.error ?? reading.error} />
        <footer className="modal-foot">
          {stage && (
            <span className="row" role="status" style={{ marginRight: "auto" }}>
              {stage.text} <Meter fraction={stage.done} label={percent(stage.done, 0)} />
            </span>
          )}
          <button type="button" onClick={onClose}>
            Cancel
          </button>
          <button type="submit" className="primary" disabled={register.busy}>
            Register
          </button>
        </footer>
      </form>
    </Modal>
  );
}

/** The least number of devices of a model for which none is given. */
export const DEFAULT_MIN_REPLICAS = 1;
export const MIN_REPLICAS_HINT = "1 to 16: with two, the model answers while a device is away; placed where memory is left";
/** The priority of a model for which none is given. */
export const DEFAULT_PRIORITY = 5;
export const PRIORITY_HINT = "0 to 9: where devices do not suffice, models of a higher priority are served first";
export const RESERVATION_HINT = "Capacity that is kept free for the model; empty: it is planned for its measured rate";

export function RateModeField({ mode, onChange }: { mode: RateMode; onChange: (mode: RateMode) => void }) {
  const meaning: Record<RateMode, string> = {
    max: "the larger of reserved and measured",
    declared: "the reserved rate",
    measured: "the measured rate",
    min: "the smaller of reserved and measured",
  };
  return (
    <Field label="Plan for">
      {(id) => (
        <select id={id} value={mode} onChange={(event) => onChange(event.target.value as RateMode)}>
          {RATE_MODES.map((m) => (
            <option key={m} value={m}>
              {meaning[m]}
            </option>
          ))}
        </select>
      )}
    </Field>
  );
}

function Tensors({ title, tensors, onChange }: { title: string; tensors: readonly Tensor[]; onChange: (tensors: Tensor[]) => void }) {
  const change = (index: number, part: Partial<Tensor>) => onChange(tensors.map((tensor, i) => (i === index ? { ...tensor, ...part } : tensor)));
  const noun = title.slice(0, -1).toLowerCase();
  return (
    <fieldset>
      <legend>{title}</legend>
      <div className="stack" style={{ gap: 8 }}>
        {tensors.map((tensor, i) => (
          <div key={i} style={{ display: "grid", gridTemplateColumns: "minmax(0, 1fr) 96px minmax(0, 1.4fr) auto", gap: 8 }}>
            <input aria-label={`Name of ${noun} ${i + 1}`} required value={tensor.name} onChange={(event) => change(i, { name: event.target.value })} />
            <select aria-label={`Datatype of ${noun} ${i + 1}`} value={tensor.datatype} onChange={(event) => change(i, { datatype: event.target.value as TensorSpec["datatype"] })}>
              {DATATYPES.map((datatype) => (
                <option key={datatype}>{datatype}</option>
              ))}
            </select>
            <input aria-label={`Shape of ${noun} ${i + 1}, with the batch dimension`} required value={tensor.shape} onChange={(event) => change(i, { shape: event.target.value })} />
            <button type="button" className="plain" aria-label={`Remove ${noun} ${i + 1}`} disabled={tensors.length === 1} onClick={() => onChange(tensors.filter((_, other) => other !== i))}>
              ✕
            </button>
          </div>
        ))}
        <div>
          <button type="button" onClick={() => onChange([...tensors, { name: "", datatype: "FP32", shape: "-1, ", rest: {} }])}>
            Add {noun === "input" ? "an input" : "an output"}
          </button>
        </div>
      </div>
    </fieldset>
  );
}
