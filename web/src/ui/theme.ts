/** Light or dark: the system's choice, until the viewer makes one. */

import { useSyncExternalStore } from "react";

export type Theme = "light" | "dark";

const KEY = "packhorse.theme";
const system = matchMedia("(prefers-color-scheme: dark)");
const watchers = new Set<() => void>();

function chosen(): Theme | null {
  const value = localStorage.getItem(KEY);
  return value === "light" || value === "dark" ? value : null;
}

const current = (): Theme => chosen() ?? (system.matches ? "dark" : "light");

function apply(): void {
  document.documentElement.dataset["theme"] = current();
  for (const watcher of watchers) watcher();
}

system.addEventListener("change", apply);
apply();

export function toggleTheme(): void {
  localStorage.setItem(KEY, current() === "dark" ? "light" : "dark");
  apply();
}

export function useTheme(): Theme {
  return useSyncExternalStore((watcher) => {
    watchers.add(watcher);
    return () => watchers.delete(watcher);
  }, current);
}

/** The value of a custom property of the style sheet, for drawing on a canvas. */
export function colour(name: string): string {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}
