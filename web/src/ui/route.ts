/** The address of a page: the part behind `#`, so that the gateway serves one file and every page can be linked to. */

import { useSyncExternalStore } from "react";

export interface Route {
  /** The parts of the path, decoded. */
  path: readonly string[];
  query: URLSearchParams;
}

export function parseRoute(hash: string): Route {
  const [path = "", query = ""] = hash.replace(/^#\/?/, "").split("?", 2);
  const parts = path.split("/").filter((part) => part !== "");
  return { path: parts.map(decode), query: new URLSearchParams(query) };
}

function decode(part: string): string {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

/** Returns the address of a page. Absent values of the query are left out. */
export function href(path: readonly (string | number)[], query: Record<string, string | number | undefined> = {}): string {
  const given = Object.entries(query).filter((entry): entry is [string, string | number] => entry[1] !== undefined);
  const search = new URLSearchParams(given.map(([key, value]) => [key, String(value)])).toString();
  return `#/${path.map(encodeURIComponent).join("/")}${search === "" ? "" : `?${search}`}`;
}

export const modelHref = (name: string, version?: number): string => href(["models", name], { version });

export function navigate(to: string): void {
  location.hash = to.slice(1);
}

let parsed: { hash: string; route: Route } | null = null;

function current(): Route {
  if (parsed?.hash !== location.hash) parsed = { hash: location.hash, route: parseRoute(location.hash) };
  return parsed.route;
}

export function useRoute(): Route {
  return useSyncExternalStore((watcher) => {
    addEventListener("hashchange", watcher);
    return () => removeEventListener("hashchange", watcher);
  }, current);
}
