/** A request from the page, and where its time went. */

import { useEffect, useMemo, useRef, useState } from "react";
import { call, sendFile } from "../api/client";
import type { ModelView, TryView } from "../api/types";
import { bytes, count, fixed, ms } from "../format";
import { keyOf } from "../live/state";
import { useCluster } from "../live/store";
import { classesOf, example, imageOf, imageTensor, largest, rawInputOf, SCALES, type TensorData, textRequest } from "../tensors";
import { textOf, useAction, useMayChange } from "../ui/hooks";
import { Card, Empty, Field, FileField, Page, Problem, State } from "../ui/parts";
import { href, navigate, useRoute } from "../ui/route";
import { Stages } from "../ui/stages";

/** The number of characters of a request up to which it can be edited; a photograph is longer. */
const EDITABLE = 200_000;
/** The longer side of a picture before it is sent, in pixels. */
const PREVIEW = 220;

export function TryIt({ name }: { name?: string | undefined }) {
  const cluster = useCluster();
  const asked = Number(useRoute().query.get("version"));
  const models = [...cluster.models.values()].sort((a, b) => keyOf(a).localeCompare(keyOf(b), "en", { numeric: true }));
  const own = models.filter((model) => model.name === name);
  const model = own.find((m) => m.version === asked) ?? own[own.length - 1] ?? (name === undefined ? models.find((m) => m.state === "ready") : undefined);
  if (models.length === 0) {
    return (
      <Page title="Try it">
        <Card>
          <Empty title="No model is registered yet.">
            <a href="#/models">Register one</a>, then send it a request from here.
          </Empty>
        </Card>
      </Page>
    );
  }
  return (
    <Page
      title="Try it"
      lead="The request passes the same path as one of a client, and counts like one."
      actions={
        <select
          aria-label="Model"
          style={{ width: "auto" }}
          value={model ? keyOf(model) : ""}
          onChange={(event) => {
            const key = event.target.value;
            navigate(href(["try", key.slice(0, key.lastIndexOf(":"))], { version: Number(key.slice(key.lastIndexOf(":") + 1)) }));
          }}
        >
          {!model && <option value="">choose a model</option>}
          {models.map((m) => (
            <option key={keyOf(m)} value={keyOf(m)}>
              {keyOf(m)}
            </option>
          ))}
        </select>
      }
    >
      {model ? <Form key={keyOf(model)} model={model} /> : <Empty title={name === undefined ? "No model is ready." : `There is no model ${name}.`} />}
    </Page>
  );
}

function Form({ model }: { model: ModelView }) {
  const mayChange = useMayChange();
  const raw = rawInputOf(model);
  const [asItIs, setAsItIs] = useState(raw !== null);
  const [picture, setPicture] = useState<File | null>(null);
  const [sentence, setSentence] = useState("");
  const [text, setText] = useState(() => pretty(example(model)));
  const [answer, setAnswer] = useState<TryView | null>(null);
  const path = `/v1/models/${encodeURIComponent(model.name)}/try?version=${model.version}`;
  const request = () => {
    if (asItIs && raw?.kind === "text") return call<TryView>("POST", path, textRequest(model, raw.name, sentence));
    if (asItIs && picture) return sendFile<TryView>(path, picture);
    if (asItIs) throw new Error("choose a picture first");
    let parsed: unknown;
    try {
      parsed = JSON.parse(text);
    } catch (error) {
      throw new Error(`the request is not JSON: ${textOf(error)}`);
    }
    return call<TryView>("POST", path, parsed);
  };
  const send = useAction(async () => {
    const answered = request();
    setAnswer(null);
    setAnswer(await answered);
  });
  const place = imageOf(model);
  return (
    <div className="grid">
      <Card className="w6" title="Request" note={<State state={model.state} />}>
        <form
          className="stack"
          onSubmit={(event) => {
            event.preventDefault();
            void send.run();
          }}
        >
          {raw && (
            <Field label="Send">
              {(id) => (
                <select id={id} value={asItIs ? "raw" : "tensors"} onChange={(event) => setAsItIs(event.target.value === "raw")}>
                  <option value="raw">{raw.kind === "image" ? "a picture" : "a sentence"}</option>
                  <option value="tensors">tensors</option>
                </select>
              )}
            </Field>
          )}
          {asItIs && raw?.kind === "image" && <Picture picture={picture} onPicture={setPicture} />}
          {asItIs && raw?.kind === "text" && (
            <Field label="Sentence" hint="cut into tokens as the model's registration declares">
              {(id) => <textarea id={id} rows={4} value={sentence} onChange={(event) => setSentence(event.target.value)} />}
            </Field>
          )}
          {!asItIs && place && <Photograph place={place} onTensor={(tensor) => setText(JSON.stringify({ inputs: [tensor] }))} />}
          {!asItIs && (
            <Field label="JSON (Open Inference Protocol)" hint={text.length > EDITABLE ? "too long to be shown in full; it is sent in full" : undefined}>
              {(id) => <textarea id={id} rows={16} spellCheck={false} readOnly={text.length > EDITABLE} value={text.length > EDITABLE ? `${text.slice(0, 2000)} …` : text} onChange={(event) => setText(event.target.value)} />}
            </Field>
          )}
          <Problem text={send.error} />
          <div className="row">
            <button type="submit" className="primary" disabled={send.busy || !mayChange} title={mayChange ? undefined : "A key with the scope read sends no requests"}>
              Send
            </button>
            {!asItIs && (
              <button type="button" onClick={() => setText(pretty(example(model)))}>
                Start again
              </button>
            )}
          </div>
        </form>
      </Card>
      <Card className="w6" title="Answer">
        {answer ? <Answer answer={answer} model={model} /> : <Empty title={send.busy ? "Waiting for the answer…" : "Nothing sent yet."} />}
      </Card>
    </div>
  );
}

/** A picture that is sent as it is. */
function Picture({ picture, onPicture }: { picture: File | null; onPicture: (picture: File | null) => void }) {
  const canvas = useRef<HTMLCanvasElement>(null);
  useEffect(() => {
    let isGone = false;
    const draw = async (file: File) => {
      const image = await createImageBitmap(file);
      const place = canvas.current;
      if (isGone || !place) return;
      const scale = Math.min(1, PREVIEW / Math.max(image.width, image.height));
      place.width = Math.round(image.width * scale);
      place.height = Math.round(image.height * scale);
      place.getContext("2d")?.drawImage(image, 0, 0, place.width, place.height);
    };
    // The gateway says what is wrong with a file that this browser cannot draw.
    if (picture) draw(picture).catch(() => undefined);
    return () => {
      isGone = true;
    };
  }, [picture]);
  return (
    <div className="stack">
      <FileField
        label="Picture"
        hint={picture ? `${picture.name}, ${bytes(picture.size)}` : "JPEG, PNG or WebP. Drop it here, or choose it."}
        accept="image/jpeg,image/png,image/webp"
        onFiles={(files) => onPicture(files?.[0] ?? null)}
      />
      {picture && <canvas key={picture.name} ref={canvas} role="img" aria-label={picture.name} style={{ maxWidth: "100%" }} />}
    </div>
  );
}

/** JSON with one line for each property, and numbers of a tensor on one line. */
function pretty(request: { inputs: TensorData[] }): string {
  const tensor = ({ name, datatype, shape, data }: TensorData) => `    {"name": ${JSON.stringify(name)}, "datatype": "${datatype}", "shape": [${shape.join(", ")}],\n     "data": [${data.map((v) => JSON.stringify(v)).join(", ")}]}`;
  return `{\n  "inputs": [\n${request.inputs.map(tensor).join(",\n")}\n  ]\n}`;
}

function Photograph({ place, onTensor }: { place: NonNullable<ReturnType<typeof imageOf>>; onTensor: (tensor: TensorData) => void }) {
  const [scale, setScale] = useState("−1 to 1");
  const [file, setFile] = useState<File | null>(null);
  const take = useAction(async (chosen: File | null, how: string) => {
    setFile(chosen);
    if (!chosen) return;
    const image = await createImageBitmap(chosen);
    const canvas = document.createElement("canvas");
    canvas.width = place.width;
    canvas.height = place.height;
    const context = canvas.getContext("2d");
    if (!context) throw new Error("this browser cannot draw on a canvas");
    // The middle of the photograph, in the shape that the model wants.
    const ratio = Math.min(image.width / place.width, image.height / place.height);
    const [width, height] = [place.width * ratio, place.height * ratio];
    context.drawImage(image, (image.width - width) / 2, (image.height - height) / 2, width, height, 0, 0, place.width, place.height);
    const pixels = context.getImageData(0, 0, place.width, place.height).data;
    onTensor(imageTensor(place, pixels, SCALES[how] ?? ((value) => value)));
  });
  return (
    <div className="fields">
      <Field label="Photograph" hint={`its middle, as ${place.width} × ${place.height} pixels`}>
        {(id) => <input id={id} type="file" accept="image/*" onChange={(event) => void take.run(event.target.files?.[0] ?? null, scale)} />}
      </Field>
      <Field label="Pixels become">
        {(id) => (
          <select
            id={id}
            value={scale}
            onChange={(event) => {
              setScale(event.target.value);
              void take.run(file, event.target.value);
            }}
          >
            {Object.keys(SCALES).map((how) => (
              <option key={how}>{how}</option>
            ))}
          </select>
        )}
      </Field>
      <Problem text={take.error} />
    </div>
  );
}

function Answer({ answer, model }: { answer: TryView; model: ModelView }) {
  const outputs = useMemo(() => {
    const response = answer.response as { outputs?: TensorData[] };
    return response.outputs ?? [];
  }, [answer]);
  const late = answer.latency_ms > answer.slo_ms;
  return (
    <div className="stack">
      <p>
        <State state={late ? "late" : "answered"} /> in <strong>{ms(answer.latency_ms)}</strong>, SLO {ms(answer.slo_ms)}
        {answer.batch && (
          <span className="muted">
            , in a batch of {count(answer.batch.rows, "row")}
            {answer.batch.device && (
              <>
                {" "}
                on <a href={href(["placement"], { device: answer.batch.device, model: keyOf(model) })}>{answer.batch.device}</a>
              </>
            )}
          </span>
        )}
      </p>
      <Stages stages={answer.stages_ms} label="Where the time went" />
      {outputs.map((output) => (
        <section key={output.name} className="stack" style={{ gap: 6 }}>
          <h3>
            {output.name}{" "}
            <span className="muted mono">
              {output.datatype} [{output.shape.join(", ")}]
            </span>
          </h3>
          <Values output={output} />
        </section>
      ))}
    </div>
  );
}

function Values({ output }: { output: TensorData }) {
  const classes = classesOf(output);
  if (classes) {
    return (
      <table className="compact">
        <thead>
          <tr>
            <th scope="col">Class</th>
            <th scope="col" className="numeric">
              Score
            </th>
          </tr>
        </thead>
        <tbody>
          {classes.map(({ score, index, label }, place) => (
            <tr key={place}>
              <td>
                {label ?? "class"} <span className="muted mono">{index}</span>
              </td>
              <td className="numeric">{fixed(score, 4)}</td>
            </tr>
          ))}
        </tbody>
      </table>
    );
  }
  return (
    <>
      {output.data.length > 8 && (
        <ol className="keys">
          {largest(output.data, 5).map(({ index, value }) => (
            <li key={index}>
              <span className="mono strong">{index}</span> {fixed(value, 4)}
            </li>
          ))}
          <li>the five largest</li>
        </ol>
      )}
      <pre className="values" tabIndex={0} aria-label={`Values of ${output.name}`}>
        {output.data.slice(0, 400).join(", ")}
        {output.data.length > 400 ? " …" : ""}
      </pre>
    </>
  );
}
