/**
 * Keeps the state of the cluster up to date: one stream of events for all tabs of a browser, changes at most twice a second, and by itself connected again.
 *
 * One tab has the stream and tells the others what comes on it. A browser gives a page that came by plain HTTP from another host no locks: there each tab has
 * a stream of its own.
 */

import { useSyncExternalStore } from "react";
import { ApiError, get, send } from "../api/client";
import type { EventView, Finding, GoodputView, ModelView, PolicyView, Snapshot } from "../api/types";
import { takeTurns, Watchdog } from "./leader";
import { EventParser, type StreamEvent } from "./sse";
import { type ClusterState, fromSnapshot, keyOf, withEvents, withGoodput } from "./state";

/** The time in milliseconds for which changes are collected before the page is drawn. */
const COLLECT = 500;
/** The time in milliseconds between two requests for what the stream does not tell. */
const REFRESH = 5000;
/** The time in milliseconds without any byte after which the connection counts as dead; the gateway sends one at least every second. */
const SILENCE = 20_000;
/** The name of the lock and of the channel of the tabs, with the version of what they tell each other. */
const TABS = "packhorse-live-1";
/** The longest time in milliseconds between two attempts to connect. */
const LONGEST_PAUSE = 10_000;

export type Connection = "connecting" | "live" | "lost";

export interface Live {
  connection: Connection;
  /** Null before the first snapshot. */
  cluster: ClusterState | null;
  /** The reason why there is no connection. */
  error: string | null;
  /** The time at which the connection was lost, in milliseconds since 1970. */
  since: number | null;
}

/** What the tab with the stream tells the others, and what they ask. */
type Message =
  | { kind: "join" }
  | { kind: "joined"; live: Live; lastId: string | null }
  | { kind: "events"; events: StreamEvent[] }
  | { kind: "lost"; error: string; since: number }
  | { kind: "refreshed"; refreshed: Refreshed };

/** What the stream does not tell. */
type Refreshed = Pick<ClusterState, "minute" | "fiveMinutes" | "findings">;

class Store {
  #live: Live = { connection: "connecting", cluster: null, error: null, since: null };
  readonly #watchers = new Set<() => void>();
  #stop: AbortController | null = null;
  #cluster: ClusterState | null = null;
  #pending: EventView[] = [];
  #timer: ReturnType<typeof setTimeout> | null = null;
  #lastId: string | null = null;
  /** The channel to the other tabs; null where each has a stream of its own. */
  #tabs: BroadcastChannel | null = null;
  #leads = false;
  #refreshed = 0;
  readonly #watchdog = new Watchdog(SILENCE);

  readonly watch = (watcher: () => void): (() => void) => {
    this.#watchers.add(watcher);
    return () => this.#watchers.delete(watcher);
  };

  readonly read = (): Live => this.#live;

  start(): void {
    this.stop();
    const stop = new AbortController();
    this.#stop = stop;
    void this.#refresh(stop.signal);
    // The types have locks in every page.
    const locks = navigator.locks as LockManager | undefined;
    if (!locks) return void this.#follow(stop.signal);
    this.#tabs = new BroadcastChannel(TABS);
    this.#tabs.onmessage = ({ data }: MessageEvent<Message>) => this.#hear(data);
    this.#say({ kind: "join" });
    void takeTurns(locks, TABS, stop.signal, this.#watchdog, async (signal) => {
      this.#leads = true;
      signal.addEventListener("abort", () => (this.#leads = false));
      await this.#follow(signal);
    });
  }

  /** Ends the stream and forgets everything, as on signing out. */
  stop(): void {
    this.#stop?.abort();
    this.#stop = null;
    this.#tabs?.close();
    this.#tabs = null;
    this.#leads = false;
    this.#refreshed = 0;
    this.#cluster = null;
    this.#pending = [];
    this.#lastId = null;
    if (this.#timer !== null) clearTimeout(this.#timer);
    this.#timer = null;
    this.#tell({ connection: "connecting", cluster: null, error: null, since: null });
  }

  #say(message: Message): void {
    this.#tabs?.postMessage(message);
  }

  /** Takes what another tab says. */
  #hear(message: Message): void {
    if (message.kind === "refreshed") return this.#adopt(message.refreshed);
    if (message.kind === "join") {
      if (!this.#leads) return;
      this.#flush();
      return this.#say({ kind: "joined", live: this.#live, lastId: this.#lastId });
    }
    if (this.#leads) return;
    this.#watchdog.alive();
    switch (message.kind) {
      case "joined":
        // Another tab may have joined.
        if (this.#cluster || !message.live.cluster) return;
        this.#cluster = message.live.cluster;
        this.#lastId = message.lastId;
        // The other tab has asked for it a moment ago.
        if (message.live.cluster.minute) this.#refreshed = Date.now();
        return this.#tell(message.live);
      case "events":
        // Events without what they change are of no use: the next snapshot brings it.
        return message.events.forEach((event) => (this.#cluster || event.name === "snapshot") && this.#take(event));
      case "lost":
        return this.#lose(message.error, message.since);
    }
  }

  #lose(error: string, since = this.#live.since ?? Date.now()): void {
    this.#tell({ ...this.#live, connection: "lost", error, since });
    if (this.#leads) this.#say({ kind: "lost", error, since });
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
        if (!signal.aborted) this.#lose("the gateway closed the connection");
      } catch (error) {
        if (signal.aborted) return;
        if (error instanceof ApiError && error.status === 401) return;
        this.#lose(error instanceof Error ? error.message : String(error));
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
      if (this.#cluster) this.#tell({ ...this.#live, connection: "live", error: null, since: null });
      const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
      const parser = new EventParser();
      for (;;) {
        const { done, value } = await reader.read();
        if (done) return;
        clearTimeout(watchdog);
        watchdog = setTimeout(abort, SILENCE);
        const events = parser.push(value);
        // Also without an event, as a sign of life.
        this.#say({ kind: "events", events });
        for (const event of events) this.#take(event);
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
    this.#tell({ connection: "live", cluster: this.#cluster, error: null, since: null });
  }

  async #refreshPolicy(): Promise<void> {
    try {
      this.adoptPolicy(await get<PolicyView>("/v1/policy"));
    } catch {
      // The next plan or snapshot brings it.
    }
  }

  /** Asks for what the stream does not tell, unless another tab has just asked: longer windows of goodput, and the numbers in the texts of findings. */
  async #refresh(signal: AbortSignal): Promise<void> {
    while (!signal.aborted) {
      const first = this.#refreshed === 0;
      if (first || (!document.hidden && Date.now() - this.#refreshed >= REFRESH)) {
        try {
          const [minute, fiveMinutes, findings] = await Promise.all([
            get<GoodputView>("/v1/goodput?window_s=60", signal),
            get<GoodputView>("/v1/goodput?window_s=300", signal),
            get<Finding[]>("/v1/findings", signal),
          ]);
          const refreshed = { minute, fiveMinutes, findings };
          this.#adopt(refreshed);
          this.#say({ kind: "refreshed", refreshed });
        } catch {
          // The stream tells whether the gateway is there.
        }
      }
      await sleep(first ? COLLECT : REFRESH / 5, signal);
    }
  }

  #adopt(refreshed: Refreshed): void {
    if (!this.#cluster) return;
    this.#refreshed = Date.now();
    this.#cluster = { ...this.#cluster, ...refreshed };
    if (this.#live.connection === "live") this.#schedule();
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
