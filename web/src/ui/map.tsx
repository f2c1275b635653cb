/** The placement map: nodes as boxes, devices with a bar of memory and a bar of compute each, cut into replicas in the same order. */

import { memo, useEffect, useMemo, useRef, useState } from "react";
import type { NodeView } from "../api/types";
import { bytes, fixed, percent } from "../format";
import { hueOf, type PlacedDevice, type PlacedReplica } from "../placement";
import { useSize } from "./hooks";
import { State } from "./parts";
import { colour, useTheme } from "./theme";

/** The number of nodes, or a quarter of the number of devices, from which the map is dense. */
export const DENSE = 50;

export interface MapProps {
  devices: readonly PlacedDevice[];
  /** The model that is picked out, as NAME:VERSION. */
  picked: string | null;
  onPick: (model: string | null) => void;
  /** The device or node that is pointed out. */
  marked?: string | null;
  detail?: (replica: PlacedReplica) => string;
  /** The replicas that are outlined because they start or stop, by identity. */
  outlined?: ReadonlySet<string>;
}

const WIDTH = 232;
const BAR = 13;

const keyOf = (replica: PlacedReplica) => `${replica.model}:${replica.version}`;

export function PlacementMap(props: MapProps) {
  const nodes = useMemo(() => {
    const byNode = new Map<string, PlacedDevice[]>();
    for (const device of props.devices) byNode.set(device.node.name, [...(byNode.get(device.node.name) ?? []), device]);
    return [...byNode];
  }, [props.devices]);
  if (nodes.length >= DENSE || props.devices.length >= DENSE * 4) return <DenseMap {...props} />;
  return (
    <div className="map">
      {nodes.map(([name, devices]) => (
        <NodeBox key={name} {...props} node={devices[0]!.node} devices={devices} />
      ))}
    </div>
  );
}

function NodeBox(props: MapProps & { node: NodeView }) {
  const { node, devices, marked } = props;
  return (
    <div className={`node ${marked === node.name ? "marked" : ""}`} role="group" aria-label={`Node ${node.name}`}>
      <header>
        <strong>{node.name}</strong> <State state={node.state} />
      </header>
      <div className="devices">
        {devices.map((device) => (
          <DeviceBars key={device.device.id} {...props} placed={device} />
        ))}
      </div>
    </div>
  );
}

function DeviceBars({ placed, picked, onPick, marked, detail, outlined }: MapProps & { placed: PlacedDevice }) {
  const { device, replicas } = placed;
  const short = device.id.slice(device.id.indexOf("/") + 1);
  return (
    <div className={`device ${marked === device.id ? "marked" : ""}`}>
      <p className="row small" style={{ justifyContent: "space-between", flexWrap: "nowrap" }}>
        <span className="strong" title={device.description}>
          {short.length > 14 ? `${short.slice(0, 12)}…` : short}
        </span>
        <span className="muted nowrap">{device.kind}</span>
      </p>
      <Bar what="memory" replicas={replicas} partOf={(r) => r.memory} total={placed.memory} picked={picked} onPick={onPick} detail={detail} outlined={outlined} />
      <Bar what="compute" replicas={replicas} partOf={(r) => r.load} total={placed.load} picked={picked} onPick={onPick} detail={detail} outlined={outlined} />
      <p className="small muted row" style={{ justifyContent: "space-between" }}>
        <span>
          memory {percent(placed.memory, 0)} of {bytes(device.memory_bytes)}
        </span>
        <span>time {percent(placed.load, 0)}</span>
      </p>
    </div>
  );
}

interface BarProps {
  what: "memory" | "compute";
  replicas: readonly PlacedReplica[];
  partOf: (replica: PlacedReplica) => number | null;
  total: number;
  picked: string | null;
  onPick: (model: string | null) => void;
  detail: ((replica: PlacedReplica) => string) | undefined;
  outlined: ReadonlySet<string> | undefined;
}

/** The least width of a replica in pixels, so that it can be seen and clicked. */
const LEAST = 4;

function Bar({ what, replicas, partOf, total, picked, onPick, detail, outlined }: BarProps) {
  const scale = total > 1 ? 1 / total : 1;
  let x = 0;
  const rects = replicas.map((replica) => {
    const width = Math.max(LEAST, (partOf(replica) ?? 0) * scale * WIDTH);
    const rect = { replica, x, width };
    x += width;
    return rect;
  });
  const squeeze = x > WIDTH ? WIDTH / x : 1;
  const first = what === "memory";
  return (
    <svg className={`bar-of ${what}`} viewBox={`0 0 ${WIDTH} ${BAR}`} width="100%" height={BAR} preserveAspectRatio="none" role="group" aria-label={what}>
      <rect width={WIDTH} height={BAR} className="free" rx={2} />
      {rects.map(({ replica, x: left, width }) => {
        const key = keyOf(replica);
        const text = describe(replica, detail);
        const part = partOf(replica);
        return (
          <rect
            key={replica.id}
            x={left * squeeze}
            width={Math.max(1, width * squeeze - 1)}
            height={BAR}
            fill={`hsl(${hueOf(replica.model)} 62% var(--map-light))`}
            className={`replica ${replica.state} ${outlined?.has(replica.id) ? "outlined" : ""} ${picked !== null && picked !== key ? "faded" : ""}`}
            // One of the two bars is enough to reach every replica by keyboard.
            {...(first ? { tabIndex: 0, role: "button", "aria-label": text, "aria-pressed": picked === key } : { "aria-hidden": true })}
            onClick={() => onPick(picked === key ? null : key)}
            onKeyDown={(event) => {
              if (event.key !== "Enter" && event.key !== " ") return;
              event.preventDefault();
              onPick(picked === key ? null : key);
            }}
          >
            <title>{`${text}\n${what}: ${part === null ? "unknown" : percent(part)}`}</title>
          </rect>
        );
      })}
    </svg>
  );
}

function describe(replica: PlacedReplica, detail?: (replica: PlacedReplica) => string): string {
  const share = replica.sharePct === null ? "no share limit" : `share ${fixed(replica.sharePct, 0)} %`;
  const load = replica.load === null ? "" : `, ${percent(replica.load)} of the device's time`;
  const more = detail?.(replica);
  return `${keyOf(replica)} (${replica.id}), ${replica.state}: batch up to ${replica.batchSize}, ${share}, ${bytes(replica.memoryBytes)}${load}${replica.also.length > 0 ? `, one worker with ${replica.also.join(", ")}` : ""}${more ? `; ${more}` : ""}`;
}

/** Thousands of devices as cells on a canvas: the darker, the more of the device is in use. */
const DenseMap = memo(function DenseMap({ devices, picked, marked, onPick, detail }: MapProps) {
  const theme = useTheme();
  const [measure, size] = useSize<HTMLDivElement>();
  const canvas = useRef<HTMLCanvasElement>(null);
  const [at, setAt] = useState<number | null>(null);
  const cell = devices.length > 2500 ? 12 : devices.length > 800 ? 18 : 26;
  const columns = Math.max(1, Math.floor(size.width / cell));
  const height = Math.ceil(devices.length / columns) * cell;
  useEffect(() => {
    const context = canvas.current?.getContext("2d");
    if (!canvas.current || !context || size.width === 0) return;
    const begin = performance.now();
    canvas.current.width = size.width * devicePixelRatio;
    canvas.current.height = height * devicePixelRatio;
    context.scale(devicePixelRatio, devicePixelRatio);
    const free = colour("sunk");
    const light = theme === "dark" ? 62 : 52;
    const mark = colour("bad");
    const ring = colour("text");
    devices.forEach((placed, i) => {
      const x = (i % columns) * cell;
      const y = Math.floor(i / columns) * cell;
      const inner = cell - 2;
      context.globalAlpha = 1;
      context.fillStyle = free;
      context.fillRect(x, y, inner, inner);
      // Slices from the bottom, each as high as the part of memory or time that it takes, whichever is more.
      const total = Math.max(1, placed.replicas.reduce((sum, r) => sum + Math.max(r.memory ?? 0, r.load ?? 0, 0.04), 0));
      let bottom = y + inner;
      for (const replica of placed.replicas) {
        const slice = (Math.max(replica.memory ?? 0, replica.load ?? 0, 0.04) / total) * inner;
        context.globalAlpha = picked !== null && picked !== keyOf(replica) ? 0.15 : 1;
        context.fillStyle = `hsl(${hueOf(replica.model)} 62% ${light}%)`;
        context.fillRect(x, bottom - slice, inner, slice);
        bottom -= slice;
      }
      context.globalAlpha = 1;
      if (placed.node.state === "lost") {
        context.strokeStyle = mark;
        context.strokeRect(x + 0.5, y + 0.5, inner - 1, inner - 1);
      }
      if (i === at || marked === placed.device.id || marked === placed.node.name) {
        context.strokeStyle = ring;
        context.lineWidth = 2;
        context.strokeRect(x, y, inner, inner);
        context.lineWidth = 1;
      }
    });
    canvas.current.dataset["paintMs"] = String(performance.now() - begin);
  }, [devices, picked, marked, at, size.width, height, columns, cell, theme]);
  const pointed = at === null ? undefined : devices[at];
  const find = (event: React.MouseEvent<HTMLCanvasElement>) => {
    const box = event.currentTarget.getBoundingClientRect();
    const column = Math.floor((event.clientX - box.left) / cell);
    const index = Math.floor((event.clientY - box.top) / cell) * columns + column;
    return column < columns && index < devices.length ? index : null;
  };
  const move = (event: React.KeyboardEvent) => {
    const step = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: columns, ArrowUp: -columns }[event.key];
    if (step === undefined) return;
    event.preventDefault();
    setAt(Math.max(0, Math.min(devices.length - 1, (at ?? -1) + (at === null ? 1 : step))));
  };
  return (
    <div>
      <p className="dense-note" role="status">
        {pointed ? (
          <>
            <strong>{pointed.device.id}</strong> {pointed.device.kind}, memory {percent(pointed.memory, 0)}, time {percent(pointed.load, 0)}: {pointed.replicas.map((r) => keyOf(r)).join(", ") || "empty"}
          </>
        ) : (
          <span className="muted">{fixed(devices.length, 0)} devices. Point at one, or move with the arrow keys.</span>
        )}
      </p>
      <div ref={measure}>
        <canvas
          ref={canvas}
          tabIndex={0}
          role="img"
          aria-label={`Map of ${devices.length} devices${pointed ? `; ${pointed.device.id}: ${pointed.replicas.map((r) => describe(r, detail)).join("; ")}` : ""}`}
          style={{ width: size.width, height, display: "block" }}
          onMouseMove={(event) => setAt(find(event))}
          onMouseLeave={() => setAt(null)}
          onKeyDown={move}
          onClick={(event) => {
            const first = devices[find(event) ?? -1]?.replicas[0];
            onPick(first && picked !== keyOf(first) ? keyOf(first) : null);
          }}
        />
      </div>
    </div>
  );
});
