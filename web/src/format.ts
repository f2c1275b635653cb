/** Numbers, times and sizes as people read them. Widths stay the same because digits are tabular. */

const rounded = new Map<number, Intl.NumberFormat>();

/** A number with this many digits after the point. */
export function fixed(value: number, digits: number): string {
  let format = rounded.get(digits);
  if (!format) {
    format = new Intl.NumberFormat("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });
    rounded.set(digits, format);
  }
  return format.format(value);
}

/** A rate in requests per second: one digit after the point below 100. */
export function rate(value: number): string {
  return fixed(value, value !== 0 && Math.abs(value) < 99.95 ? 1 : 0);
}

/** A duration in milliseconds, with three significant digits: `8.25 ms`, `1.20 s`. */
export function ms(value: number | null | undefined): string {
  if (value === null || value === undefined) return "–";
  if (value >= 9_995) return `${fixed(value / 1000, 1)} s`;
  if (value >= 999.5) return `${fixed(value / 1000, 2)} s`;
  return `${fixed(value, value >= 99.95 ? 0 : value >= 9.995 ? 1 : 2)} ms`;
}

export function percent(fraction: number, digits = 1): string {
  return `${fixed(fraction * 100, digits)} %`;
}

export function bytes(value: number | null | undefined): string {
  if (value === null || value === undefined) return "–";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let power = 0;
  while (value >= 999.5 && power < units.length - 1) {
    value /= 1024;
    power += 1;
  }
  return `${fixed(value, power === 0 || value >= 99.95 ? 0 : 1)} ${units[power]}`;
}

/** Shares of versions in percent: `1: 90 %, 2: 10 %`. */
export function shares(split: Readonly<Record<string, number>>): string {
  return Object.entries(split)
    .map(([version, share]) => `${version}: ${share} %`)
    .join(", ");
}

/** A time in the viewer's zone. */
export function clock(unixMs: number): string {
  return new Date(unixMs).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", second: "2-digit" });
}

export function dateAndTime(unixMs: number): string {
  return new Date(unixMs).toLocaleString([], { dateStyle: "medium", timeStyle: "medium" });
}

/** A time of the past relative to another: `12 s ago`. */
export function ago(unixMs: number, now: number): string {
  return `${span(Math.max(0, now - unixMs))} ago`;
}

/** A length of time in one unit: `12 s`, `4 min`, `3 h`, `2 d`. */
export function span(lengthMs: number): string {
  const seconds = Math.round(lengthMs / 1000);
  if (seconds < 90) return `${seconds} s`;
  const minutes = Math.round(seconds / 60);
  if (minutes < 90) return `${minutes} min`;
  const hours = Math.round(minutes / 60);
  return hours < 48 ? `${hours} h` : `${Math.round(hours / 24)} d`;
}

/** `1 replica`, `2 replicas`. */
export function count(number: number, noun: string): string {
  return `${fixed(number, 0)} ${noun}${number === 1 ? "" : "s"}`;
}
