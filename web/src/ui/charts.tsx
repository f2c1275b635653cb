/** Charts: time series on a canvas (uPlot), small ones as SVG. */

import { memo, useEffect, useRef } from "react";
import uPlot from "uplot";
import { clock } from "../format";
import { useSize } from "./hooks";
import { colour, useTheme } from "./theme";

export interface Series {
  label: string;
  /** A custom property of the style sheet. */
  colour: string;
  fill?: boolean;
  dash?: boolean;
  points?: boolean;
  value: (value: number) => string;
}

interface LinesProps {
  label: string;
  /** The x values, then the y values of each series; null is a gap. */
  data: uPlot.AlignedData;
  series: readonly Series[];
  unit: string;
  /** The meaning of the x axis: times in seconds since 1970, or numbers with this name. */
  x: "time" | string;
  xValue?: (value: number) => string;
  height?: number;
  /** A horizontal line, such as an SLO. */
  limit?: { value: number; label: string };
  /** The begin and the end of the x axis; those of the data if absent. */
  range?: Range;
  /** Vertical lines at times in seconds. */
  marks?: readonly Mark[];
}

export type Range = readonly [number, number];

export interface Mark {
  at: number;
  /** A custom property of the style sheet. */
  colour: string;
}

/** The steps between the ticks of a time axis, in seconds. */
const SECONDS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 1800, 3600, 7200, 14_400, 21_600];

/** A chart of lines over time or over a number. */
export const Lines = memo(function Lines({ label, data, series, unit, x, xValue, height = 240, limit, range, marks }: LinesProps) {
  const theme = useTheme();
  const [measure, size] = useSize<HTMLDivElement>();
  const host = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const latest = useRef(data);
  latest.current = data;
  const given = useRef({ range, marks });
  given.current = { range, marks };
  const shape = JSON.stringify([series.map((s) => [s.label, s.colour, s.dash, s.fill, s.points]), unit, x, limit, height, theme]);
  const ready = size.width > 0;
  useEffect(() => {
    if (!ready || !host.current) return;
    const text = colour("muted");
    const grid = { stroke: colour("line"), width: 1 };
    const font = "12px system-ui, sans-serif";
    const axis: uPlot.Axis = { stroke: text, grid, ticks: { show: false }, font, labelFont: font, labelSize: 18, labelGap: 2 };
    const timed = x === "time";
    const options: uPlot.Options = {
      width: size.width,
      height,
      padding: [12, 12, 0, 0],
      legend: { live: true },
      cursor: { y: false, drag: { x: false, y: false } },
      scales: { x: { time: timed, ...(range && { range: (_: uPlot, min: number, max: number) => [...(given.current.range ?? [min, max])] as [number, number] }) }, y: { range: (_, __, max) => [0, Math.max(max, limit?.value ?? 0, 1e-3) * 1.08] } },
      axes: [
        timed ? { ...axis, values: (_, ticks) => ticks.map((t) => clock(t * 1000)), space: 90, size: 30, incrs: SECONDS } : { ...axis, label: x, size: 28 },
        { ...axis, label: unit, size: 56 },
      ],
      series: [
        { label: timed ? "Time" : x, value: (_, value) => (value === null ? "–" : timed ? clock(value * 1000) : (xValue?.(value) ?? String(value))) },
        ...series.map((s) => ({
          label: s.label,
          stroke: colour(s.colour),
          width: 1.6,
          points: { show: s.points ?? false, size: 6 },
          ...(s.fill ? { fill: `${colour(s.colour)}22` } : {}),
          ...(s.dash ? { dash: [6, 5] } : {}),
          value: (_: uPlot, value: number | null) => (value === null || value === undefined ? "–" : s.value(value)),
        })),
      ],
      hooks: {
        setCursor: [(u) => (u.cursor.left ?? -1) < 0 && showLast(u)],
        draw: [(u) => drawMarks(u, given.current.marks ?? []), (u) => limit && drawLimit(u, limit)],
      },
    };
    plot.current = new uPlot(options, latest.current, host.current);
    showLast(plot.current);
    return () => {
      plot.current?.destroy();
      plot.current = null;
    };
    // The options are rebuilt only when what they are made of changes.
  }, [shape, ready]);
  useEffect(() => {
    if (size.width > 0) plot.current?.setSize({ width: size.width, height });
  }, [size.width, height]);
  useEffect(() => {
    if (!plot.current) return;
    plot.current.setData(data);
    showLast(plot.current);
  }, [data, range?.[0], range?.[1], marks]);
  return (
    <div className="chart" ref={measure} role="img" aria-label={label} style={{ minHeight: height + 34 }}>
      <div ref={host} />
    </div>
  );
});

function drawLimit(plot: uPlot, limit: { value: number; label: string }): void {
  const y = plot.valToPos(limit.value, "y", true);
  const { left, width } = plot.bbox;
  plot.ctx.save();
  plot.ctx.strokeStyle = colour("bad");
  plot.ctx.fillStyle = colour("bad");
  plot.ctx.setLineDash([4, 4]);
  plot.ctx.beginPath();
  plot.ctx.moveTo(left, y);
  plot.ctx.lineTo(left + width, y);
  plot.ctx.stroke();
  plot.ctx.font = `${11 * devicePixelRatio}px system-ui, sans-serif`;
  plot.ctx.textAlign = "right";
  plot.ctx.fillText(limit.label, left + width - 4, y - 5);
  plot.ctx.restore();
}

function drawMarks(plot: uPlot, marks: readonly Mark[]): void {
  const { left, top, width, height } = plot.bbox;
  plot.ctx.save();
  plot.ctx.setLineDash([2, 3]);
  for (const mark of marks) {
    const x = plot.valToPos(mark.at, "x", true);
    if (x < left || x > left + width) continue;
    plot.ctx.strokeStyle = colour(mark.colour);
    plot.ctx.beginPath();
    plot.ctx.moveTo(x, top);
    plot.ctx.lineTo(x, top + height);
    plot.ctx.stroke();
  }
  plot.ctx.restore();
}

/** Shows the newest values in the legend while nothing is pointed at. */
function showLast(plot: uPlot): void {
  const length = plot.data[0].length;
  if (length > 0 && (plot.cursor.left ?? -1) < 0) plot.setLegend({ idx: length - 1 });
}

/** Goodput over the last two minutes, against what was offered. */
export const Sparkline = memo(function Sparkline({ values, offered, label }: { values: readonly number[]; offered: readonly number[]; label: string }) {
  const width = 96;
  const height = 24;
  const most = Math.max(1e-9, ...values, ...offered);
  const line = (points: readonly number[]) => {
    const step = width / Math.max(1, points.length - 1);
    return points.map((v, i) => `${i === 0 ? "M" : "L"}${(i * step).toFixed(1)} ${(height - 1 - (v / most) * (height - 3)).toFixed(1)}`).join("");
  };
  return (
    <svg className="sparkline" width={width} height={height} role="img" aria-label={label}>
      {offered.length > 1 && <path d={line(offered)} className="offered" />}
      {values.length > 1 && <path d={line(values)} className="goodput" />}
    </svg>
  );
});

export interface Bar {
  label: string;
  value: number;
  tone?: string;
}

/** Vertical bars with an axis below, such as a histogram, and a line at a position between 0 and 1. */
export function Bars({ label, bars, unit, mark, height = 170 }: { label: string; bars: readonly Bar[]; unit: string; mark?: { at: number; label: string }; height?: number }) {
  const most = Math.max(1, ...bars.map((bar) => bar.value));
  return (
    <figure className="bars" role="img" aria-label={label}>
      <div className="plot" style={{ height }}>
        <span className="top">
          {most.toLocaleString("en")} {unit} at most
        </span>
        {bars.map((bar, i) => (
          <span key={i} className={`bar ${bar.tone ?? ""}`} title={`${bar.label}: ${bar.value.toLocaleString("en")} ${unit}`} style={{ height: `${(bar.value / most) * 100}%` }} />
        ))}
        {mark && mark.at <= 1 && (
          <span className="mark" data-side={mark.at < 0.5 ? "right" : "left"} style={{ left: `${mark.at * 100}%` }}>
            <span>{mark.label}</span>
          </span>
        )}
      </div>
      <div className="axis">
        {[...new Set([bars[0]?.label, bars[Math.floor(bars.length / 2)]?.label, bars[bars.length - 1]?.label])].map((text) => (
          <span key={text}>{text}</span>
        ))}
      </div>
    </figure>
  );
}
