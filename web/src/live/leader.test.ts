import { expect, test, vi } from "vitest";
import { type Locks, takeTurns, Watchdog } from "./leader";

/** A lock manager with one lock, as browsers have it. */
class OneLock implements Locks {
  #queue: (() => void)[] = [];
  #rob: (() => void) | null = null;

  async request(_: string, { signal, steal }: { signal?: AbortSignal; steal?: boolean }, hold: () => Promise<void>): Promise<void> {
    if (steal) this.#rob?.();
    else if (this.#rob !== null) {
      await new Promise<void>((resolve, reject) => {
        this.#queue.push(resolve);
        signal?.addEventListener("abort", () => {
          this.#queue = this.#queue.filter((other) => other !== resolve);
          reject(new DOMException("", "AbortError"));
        });
      });
    }
    let rob = () => {};
    const robbed = new Promise<never>((_, reject) => (rob = () => reject(new DOMException("", "AbortError"))));
    this.#rob = rob;
    try {
      await Promise.race([hold(), robbed]);
    } finally {
      if (this.#rob === rob) {
        this.#rob = null;
        this.#queue.shift()?.();
      }
    }
  }
}

/** A tab that leads until it is closed. */
function tab(locks: Locks, name: string, leaders: string[], limitMs = 60_000) {
  const closed = new AbortController();
  const watchdog = new Watchdog(limitMs);
  const done = takeTurns(locks, "stream", closed.signal, watchdog, (signal) => {
    leaders.push(name);
    return new Promise((_, reject) => signal.addEventListener("abort", () => reject(new Error("the lead is over"))));
  });
  return { close: () => closed.abort(), watchdog, done };
}

test("one tab leads at a time, and the next when it is closed", async () => {
  const locks = new OneLock();
  const leaders: string[] = [];
  const [a, b, c] = ["a", "b", "c"].map((name) => tab(locks, name, leaders));
  await vi.waitFor(() => expect(leaders).toEqual(["a"]));
  b?.close();
  await b?.done;
  a?.close();
  await vi.waitFor(() => expect(leaders).toEqual(["a", "c"]));
  c?.close();
  await Promise.all([a?.done, c?.done]);
});

test("a tab that does not answer loses the lead, and waits for its turn again", async () => {
  const locks = new OneLock();
  const leaders: string[] = [];
  const silent = tab(locks, "silent", leaders);
  await vi.waitFor(() => expect(leaders).toEqual(["silent"]));
  const other = tab(locks, "other", leaders, 20);
  await vi.waitFor(() => expect(leaders).toEqual(["silent", "other"]));
  other.close();
  await vi.waitFor(() => expect(leaders).toEqual(["silent", "other", "silent"]));
  silent.close();
  await Promise.all([silent.done, other.done]);
});

test("a tab that hears of the leader leaves it the lead", async () => {
  vi.useFakeTimers();
  const watchdog = new Watchdog(1000);
  const silence = watchdog.begin();
  for (let i = 0; i < 10; i++) {
    vi.advanceTimersByTime(900);
    watchdog.alive();
  }
  expect(silence.aborted).toBe(false);
  vi.advanceTimersByTime(1000);
  expect(silence.aborted).toBe(true);
  vi.useRealTimers();
});

test("who signs out leads no more", async () => {
  const locks = new OneLock();
  let turns = 0;
  await takeTurns(locks, "stream", new AbortController().signal, new Watchdog(1000), async () => void (turns += 1));
  expect(turns).toBe(1);
});
