/** Which tab of a browser has the stream: one at a time, and another one when it goes or does not answer any more. */

/** The part of the browser's lock manager that is used. */
export interface Locks {
  request(name: string, options: { signal?: AbortSignal; steal?: boolean }, hold: () => Promise<void>): Promise<unknown>;
}

/** A time limit that begins again with every sign of life. */
export class Watchdog {
  #timer: ReturnType<typeof setTimeout> | undefined;
  #silence = new AbortController();

  constructor(readonly limitMs: number) {}

  /** Takes note of a sign of life. */
  alive(): void {
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => this.#silence.abort(), this.limitMs);
  }

  stop(): void {
    clearTimeout(this.#timer);
  }

  /** Begins anew, and returns what is aborted at the end of the time limit. */
  begin(): AbortSignal {
    this.#silence = new AbortController();
    this.alive();
    return this.#silence.signal;
  }
}

/**
 * Waits to be the one tab that leads, and calls `lead` then; its signal is aborted when another tab takes the lead. A leader that gives no sign of life for
 * as long as the watchdog waits loses the lead to this tab. Ends with the signal, and when `lead` ends by itself.
 */
export async function takeTurns(locks: Locks, name: string, signal: AbortSignal, watchdog: Watchdog, lead: (signal: AbortSignal) => Promise<void>): Promise<void> {
  let steal = false;
  while (!signal.aborted) {
    const leading = new AbortController();
    const end = () => leading.abort();
    signal.addEventListener("abort", end);
    const silence = watchdog.begin();
    const waiting = steal ? { steal } : { signal: AbortSignal.any([signal, silence]) };
    let ended = false;
    try {
      await locks.request(name, waiting, async () => {
        watchdog.stop();
        await lead(leading.signal);
        ended = true;
      });
    } catch {
      // Another tab has taken the lead, or nothing was heard of it.
    } finally {
      leading.abort();
      signal.removeEventListener("abort", end);
    }
    if (ended) break;
    steal = silence.aborted && !steal;
  }
  watchdog.stop();
}
