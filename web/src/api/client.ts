/** Requests to the gateway's admin API. The session is a cookie that no script can read; every request tells that it comes from this page. */

import type { SessionRequest, SessionView } from "./types";

/** The header that a page of another site cannot send. */
const CSRF = "x-packhorse-csrf";

export class ApiError extends Error {
  constructor(
    readonly status: number,
    message: string,
  ) {
    super(message);
  }
}

/** Who is signed in; `null`: nobody; `undefined`: not known yet. */
let known: SessionView | null | undefined;
const watchers = new Set<() => void>();

export function session(): SessionView | null | undefined {
  return known;
}

export function watchSession(watcher: () => void): () => void {
  watchers.add(watcher);
  return () => watchers.delete(watcher);
}

/** Takes note of who is signed in, and tells those who watch. */
export function setSession(value: SessionView | null): void {
  known = value;
  for (const watcher of watchers) watcher();
}

/** Asks the gateway who is signed in. */
export async function findSession(): Promise<void> {
  try {
    setSession(await get<SessionView>("/v1/session"));
  } catch {
    setSession(null);
  }
}

export async function signIn(request: SessionRequest): Promise<void> {
  setSession(await call<SessionView>("POST", "/v1/session", request));
}

export async function signOut(): Promise<void> {
  await call("DELETE", "/v1/session").catch(() => undefined);
  setSession(null);
}

/** Sends a request. Throws an `ApiError` with the gateway's message if it is refused; without a valid session nobody is signed in. */
export async function send(path: string, init: RequestInit = {}): Promise<Response> {
  const headers = new Headers(init.headers);
  headers.set(CSRF, "1");
  let response: Response;
  try {
    response = await fetch(path, { ...init, headers });
  } catch (error) {
    if (error instanceof DOMException && error.name === "AbortError") throw error;
    throw new ApiError(0, "the gateway cannot be reached");
  }
  if (response.ok) return response;
  if (response.status === 401) setSession(null);
  throw new ApiError(response.status, await errorText(response));
}

/** Returns the message of an error's body, `{"error": …}`. */
async function errorText(response: Response): Promise<string> {
  const text = await response.text().catch(() => "");
  try {
    const body: unknown = JSON.parse(text);
    if (typeof body === "object" && body !== null && "error" in body && typeof body.error === "string") return body.error;
  } catch {
    // The body is not the gateway's own.
  }
  return `the gateway answered with status ${response.status}`;
}

export async function get<T>(path: string, signal?: AbortSignal): Promise<T> {
  return (await (await send(path, { signal: signal ?? null })).json()) as T;
}

export async function getText(path: string, signal?: AbortSignal): Promise<string> {
  return (await send(path, { signal: signal ?? null })).text();
}

/** Sends JSON and returns the answer; `undefined` for an answer without a body. */
export async function call<T>(method: string, path: string, body?: unknown, signal?: AbortSignal): Promise<T> {
  const init: RequestInit = { method, signal: signal ?? null };
  if (body !== undefined) {
    init.headers = { "content-type": "application/json" };
    init.body = JSON.stringify(body);
  }
  const response = await send(path, init);
  return (response.status === 204 ? undefined : await response.json()) as T;
}

/** Sends a file as it is, and returns the answer. */
export async function sendFile<T>(path: string, file: Blob): Promise<T> {
  return (await (await send(path, { method: "POST", headers: { "content-type": file.type }, body: file })).json()) as T;
}

/** Stores a model file, with its progress from 0 to 1. `fetch` tells no progress of what it sends. */
export function upload(path: string, file: Blob, progress: (done: number) => void): Promise<void> {
  return new Promise((resolve, reject) => {
    const request = new XMLHttpRequest();
    request.open("PUT", path);
    request.setRequestHeader(CSRF, "1");
    request.setRequestHeader("content-type", "application/octet-stream");
    request.upload.onprogress = (event) => progress(event.loaded / Math.max(1, event.total));
    request.onerror = () => reject(new ApiError(0, "the gateway cannot be reached"));
    request.onload = () => {
      if (request.status < 300) return resolve();
      let text = `the gateway answered with status ${request.status}`;
      try {
        text = (JSON.parse(request.responseText) as { error?: string }).error ?? text;
      } catch {
        // The body is not the gateway's own.
      }
      reject(new ApiError(request.status, text));
    };
    request.send(file);
  });
}
