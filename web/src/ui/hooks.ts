import { useCallback, useEffect, useRef, useState, useSyncExternalStore } from "react";
import { session, watchSession } from "../api/client";

export interface Loaded<T> {
  data: T | null;
  error: string | null;
  reload: () => void;
}

/** Loads something, again when `key` changes, and every `everyMs` milliseconds while the page is visible. */
export function useLoaded<T>(key: string, load: (signal: AbortSignal) => Promise<T>, everyMs?: number): Loaded<T> {
  const [state, setState] = useState<{ key: string; data: T | null; error: string | null }>({ key, data: null, error: null });
  const [turn, setTurn] = useState(0);
  const latest = useRef(load);
  latest.current = load;
  useEffect(() => {
    const stop = new AbortController();
    let timer: ReturnType<typeof setTimeout> | undefined;
    const run = async () => {
      if (!document.hidden || timer === undefined) {
        try {
          const data = await latest.current(stop.signal);
          if (!stop.signal.aborted) setState({ key, data, error: null });
        } catch (error) {
          if (!stop.signal.aborted) setState((before) => ({ key, data: before.key === key ? before.data : null, error: textOf(error) }));
        }
      }
      if (everyMs !== undefined && !stop.signal.aborted) timer = setTimeout(run, everyMs);
    };
    void run();
    return () => {
      stop.abort();
      clearTimeout(timer);
    };
  }, [key, everyMs, turn]);
  const reload = useCallback(() => setTurn((n) => n + 1), []);
  const current = state.key === key;
  return { data: current ? state.data : null, error: current ? state.error : null, reload };
}

export function textOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}

export interface Action<A extends unknown[]> {
  busy: boolean;
  error: string | null;
  run: (...args: A) => Promise<boolean>;
}

/** A change that is sent to the gateway: whether it is under way, and why it was refused. */
export function useAction<A extends unknown[]>(act: (...args: A) => Promise<void>): Action<A> {
  const [state, setState] = useState<{ busy: boolean; error: string | null }>({ busy: false, error: null });
  const run = async (...args: A) => {
    setState({ busy: true, error: null });
    try {
      await act(...args);
      setState({ busy: false, error: null });
      return true;
    } catch (error) {
      setState({ busy: false, error: textOf(error) });
      return false;
    }
  };
  return { ...state, run };
}

/** The size of an element, kept up to date. */
export function useSize<E extends Element>(): [(element: E | null) => void, { width: number; height: number }] {
  const [size, setSize] = useState({ width: 0, height: 0 });
  const observer = useRef<ResizeObserver | null>(null);
  const ref = useCallback((element: E | null) => {
    observer.current?.disconnect();
    if (!element) return;
    observer.current = new ResizeObserver(([entry]) => {
      if (entry) setSize({ width: Math.floor(entry.contentRect.width), height: Math.floor(entry.contentRect.height) });
    });
    observer.current.observe(element);
  }, []);
  return [ref, size];
}

/** Returns true if the signed-in one may change something. */
export function useMayChange(): boolean {
  return useSyncExternalStore(watchSession, session)?.scope === "admin";
}
