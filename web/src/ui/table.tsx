/** A table that sorts, and draws only the rows that are in sight. */

import { type ReactNode, useMemo, useRef, useState } from "react";
import { useSize } from "./hooks";

/** The height of a row in pixels; the style sheet has the same. */
const ROW = 44;
/** The number of rows that are drawn above and below those in sight. */
const SPARE = 8;

export interface Column<T> {
  title: string;
  cell: (row: T) => ReactNode;
  /** What the column is sorted by; a column without it cannot be sorted. */
  sort?: (row: T) => number | string;
  numeric?: boolean;
  /** True for the column that takes what the others leave; its text is cut off. */
  grow?: boolean;
  /** The least width of the window at which the column is shown. */
  from?: "tablet" | "desktop";
}

interface Props<T> {
  label: string;
  rows: readonly T[];
  columns: readonly Column<T>[];
  rowKey: (row: T) => string;
  /** The column and direction that the table is sorted by at first; without it, rows stay in the given order. */
  initial?: { title: string; descending?: boolean };
  empty?: ReactNode;
  /** The height from which the table scrolls in itself, in pixels. */
  maxHeight?: number;
}

export function Table<T>({ label, rows, columns, rowKey, initial, empty, maxHeight = 620 }: Props<T>) {
  const [order, setOrder] = useState(initial ?? null);
  const [top, setTop] = useState(0);
  const frame = useRef<number | null>(null);
  const [ref, size] = useSize<HTMLDivElement>();
  const sorted = useMemo(() => {
    const by = columns.find((column) => column.title === order?.title)?.sort;
    if (!by) return rows;
    const sign = order?.descending ? -1 : 1;
    return [...rows].sort((a, b) => sign * compare(by(a), by(b)));
  }, [rows, columns, order]);
  if (rows.length === 0 && empty) return <>{empty}</>;
  const height = size.height || maxHeight;
  const first = Math.max(0, Math.floor(top / ROW) - SPARE);
  const last = Math.min(sorted.length, Math.ceil((top + height) / ROW) + SPARE);
  const classOf = (column: Column<T>) => `${column.numeric ? "numeric" : ""} ${column.grow ? "grow" : ""} ${column.from ? `from-${column.from}` : ""}`;
  const onScroll = (event: React.UIEvent<HTMLDivElement>) => {
    const { scrollTop } = event.currentTarget;
    if (frame.current !== null) cancelAnimationFrame(frame.current);
    frame.current = requestAnimationFrame(() => setTop(scrollTop));
  };
  return (
    <div className="table" ref={ref} style={{ maxHeight }} onScroll={onScroll} tabIndex={0} role="region" aria-label={label}>
      <table aria-rowcount={sorted.length + 1}>
        <thead>
          <tr>
            {columns.map((column) => {
              const active = order?.title === column.title;
              const direction = !active ? undefined : order.descending ? "descending" : "ascending";
              return (
                <th key={column.title} scope="col" className={classOf(column)} aria-sort={direction}>
                  {column.sort ? (
                    <button type="button" className="plain" onClick={() => setOrder({ title: column.title, descending: active ? !order.descending : (column.numeric ?? false) })}>
                      {column.title}
                      <span className="arrow" aria-hidden="true">
                        {direction === "descending" ? "↓" : direction === "ascending" ? "↑" : ""}
                      </span>
                    </button>
                  ) : (
                    column.title
                  )}
                </th>
              );
            })}
          </tr>
        </thead>
        <tbody>
          {first > 0 && <tr aria-hidden="true" style={{ height: first * ROW }} />}
          {sorted.slice(first, last).map((row, index) => (
            <tr key={rowKey(row)} aria-rowindex={first + index + 2}>
              {columns.map((column) => (
                <td key={column.title} className={classOf(column)}>
                  {column.cell(row)}
                </td>
              ))}
            </tr>
          ))}
          {last < sorted.length && <tr aria-hidden="true" style={{ height: (sorted.length - last) * ROW }} />}
        </tbody>
      </table>
    </div>
  );
}

function compare(a: number | string, b: number | string): number {
  if (typeof a === "number" && typeof b === "number") return a - b;
  return String(a).localeCompare(String(b), "en", { numeric: true });
}
