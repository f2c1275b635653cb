/** Keeps the state of the cluster up to date: one stream of events for the page, changes at most twice a second, and by itself connected again. */

import { useSyncExternalStore } from "react";
import { ApiError, get, send } from "../api/client";
import type { EventView, Finding, GoodputView, ModelView, PolicyView, Snapshot } from "../api/types";
import { EventParser, type StreamEvent } from "./sse";
import { type ClusterState, fromSnapshot, keyOf, withEvents, withGoodput } from "./state";

/** The time in milliseconds for which changes are collected before the page is drawn. */
const COLLECT = 500;
/** The time in milliseconds between two requests for what the stream does not tell. */
const REFRESH = 5000;
/** The time in milliseconds without any byte after which the connection counts as dead; the gateway sends one at least every second. */
const SILENCE = 20_000;
/** The longest time in milliseconds between two attempts to connect. */
const LONGEST_PAUSE = 10_000;

export type Connection = "connecting" | "live" | "lost";

export interface Live {
  connection: Connection;
  /** Null before the first snapshot. */
  cluster: ClusterState | null;
  /** The reason why there is no connection. */
  error: string | null;
}

class Store {
  #live: Live = { connection: "connecting", cluster: null, error: null };
  readonly #watchers = new Set<() => void>();
  #stop: AbortController | null = null;
  #cluster: ClusterState | null = null;
  #pending: EventView[] = [];
  #timer: ReturnType<typeof setTimeout> | null = null;
  #lastId: string | null = null;

  readonly watch = (watcher: () => void): (() => void) => {
    this.#watchers.add(watcher);
    return () => this.#watchers.delete(watcher);
  };

  readonly read = (): Live => this.#live;

  start(): void {
    this.stop();
    const stop = new AbortController();
    this.#stop = stop;
    void this.#follow(stop.signal);
    void this.#refresh(stop.signal);
  }

  /** Ends the stream and forgets everything, as on signing out. */
  stop(): void {
    this.#stop?.abort();
    this.#stop = null;
    this.#cluster = null;
    this.#pending = [];
    this.#lastId = null;
    if (this.#timer !== null) clearTimeout(this.#timer);
    this.#timer = null;
    this.#tell({ connection: "connecting", cluster: null, error: null });
  }

  /** Replaces what an answer to a change has told; the event may come later. */
  adoptModel(model: ModelView): void {
    if (!this.#cluster) return;
    this.#cluster = { ...this.#cluster, models: new Map(this.#cluster.models).set(keyOf(model), model) };
    this.#flush();
  }

  adoptPolicy(policy: PolicyView): void {
    if (!this.#cluster) return;
    this.#cluster = { ...this.#cluster, policy };
    this.#flush();
  }

  async #follow(signal: AbortSignal): Promise<void> {
    let pause = 500;
    while (!signal.aborted) {
      try {
        await this.#read(signal, () => (pause = 500));
        if (!signal.aborted) this.#tell({ ...this.#live, connection: "lost", error: "the gateway closed the connection" });
      } catch (error) {
        if (signal.aborted) return;
        if (error instanceof ApiError && error.status === 401) return;
        const text = error instanceof Error ? error.message : String(error);
        this.#tell({ ...this.#live, connection: "lost", error: text });
      }
      await sleep(pause, signal);
      pause = Math.min(LONGEST_PAUSE, pause * 2);
    }
  }

  /** Reads one connection to its end. */
  async #read(signal: AbortSignal, connected: () => void): Promise<void> {
    const attempt = new AbortController();
    const abort = () => attempt.abort();
    signal.addEventListener("abort", abort);
    let watchdog = setTimeout(abort, SILENCE);
    try {
      const headers: Record<string, string> = this.#lastId === null ? {} : { "last-event-id": this.#lastId };
      const response = await send("/v1/events", { headers, signal: attempt.signal });
      if (!response.body) throw new ApiError(0, "the stream of events has no body");
      connected();
      if (this.#cluster) this.#tell({ ...this.#live, connection: "live", error: null });
      const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
      const parser = new EventParser();
      for (;;) {
        const { done, value } = await reader.read();
        if (done) return;
        clearTimeout(watchdog);
        watchdog = setTimeout(abort, SILENCE);
        for (const event of parser.push(value)) this.#take(event);
      }
    } finally {
      clearTimeout(watchdog);
      signal.removeEventListener("abort", abort);
    }
  }

  #take(event: StreamEvent): void {
    if (event.name === "snapshot") {
      this.#pending = [];
      this.#cluster = fromSnapshot(JSON.parse(event.data) as Snapshot, this.#cluster);
      this.#flush();
    } else if (event.name === "goodput") {
      if (this.#cluster) this.#cluster = withGoodput(this.#cluster, JSON.parse(event.data) as GoodputView, Date.now() / 1000);
      this.#schedule();
    } else {
      this.#pending.push(JSON.parse(event.data) as EventView);
      this.#schedule();
    }
    if (event.id !== null) this.#lastId = event.id;
  }

  #schedule(): void {
    this.#timer ??= setTimeout(() => this.#flush(), COLLECT);
  }

  #flush(): void {
    if (this.#timer !== null) clearTimeout(this.#timer);
    this.#timer = null;
    if (!this.#cluster) return;
    if (this.#pending.length > 0) {
      const before = this.#cluster.plan;
      this.#cluster = withEvents(this.#cluster, this.#pending);
      this.#pending = [];
      // No event tells of a changed policy but the plan that comes of it.
      if (before?.generation !== this.#cluster.plan?.generation) void this.#refreshPolicy();
    }
    this.#tell({ connection: "live", cluster: this.#cluster, error: null });
  }

  async #refreshPolicy(): Promise<void> {
    try {
      this.adoptPolicy(await get<PolicyView>("/v1/policy"));
    } catch {
      // The next plan or snapshot brings it.
    }
  }

  /** Asks for what the stream does not tell: longer windows of goodput, and the numbers in the texts of findings. */
  async #refresh(signal: AbortSignal): Promise<void> {
    let first = true;
    while (!signal.aborted) {
      if (first || !document.hidden) {
        try {
          const [minute, fiveMinutes, findings] = await Promise.all([
            get<GoodputView>("/v1/goodput?window_s=60", signal),
            get<GoodputView>("/v1/goodput?window_s=300", signal),
            get<Finding[]>("/v1/findings", signal),
          ]);
          if (this.#cluster) {
            this.#cluster = { ...this.#cluster, minute, fiveMinutes, findings };
            this.#schedule();
            first = false;
          }
        } catch {
          // The stream tells whether the gateway is there.
        }
      }
      await sleep(first ? COLLECT : REFRESH, signal);
    }
  }

  #tell(live: Live): void {
    this.#live = live;
    for (const watcher of this.#watchers) watcher();
  }
}

function sleep(ms: number, signal: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    const done = () => {
      clearTimeout(timer);
      resolve();
    };
    const timer = setTimeout(done, ms);
    signal.addEventListener("abort", done, { once: true });
  });
}

export const store = new Store();

export function useLive(): Live {
  return useSyncExternalStore(store.watch, store.read);
}

/** The state of the cluster; pages are drawn only when there is one. */
export function useCluster(): ClusterState {
  const { cluster } = useLive();
  if (!cluster) throw new Error("a page was drawn before the first snapshot");
  return cluster;
}
