/** Requests to the gateway's admin API. The token is kept for the time of the browser's tab and goes into a header, never into an address. */

const TOKEN = "packhorse.token";

export class ApiError extends Error {
  constructor(
    readonly status: number,
    message: string,
  ) {
    super(message);
  }
}

export function token(): string | null {
  return sessionStorage.getItem(TOKEN);
}

const watchers = new Set<() => void>();

/** Keeps a token, or forgets it, and tells those who watch. */
export function setToken(value: string | null): void {
  if (value === null) sessionStorage.removeItem(TOKEN);
  else sessionStorage.setItem(TOKEN, value);
  for (const watcher of watchers) watcher();
}

export function watchToken(watcher: () => void): () => void {
  watchers.add(watcher);
  return () => watchers.delete(watcher);
}

/** Sends a request. Throws an `ApiError` with the gateway's message if it is refused; a refused token is forgotten. */
export async function send(path: string, init: RequestInit = {}, bearer = token()): Promise<Response> {
  const headers = new Headers(init.headers);
  if (bearer !== null) headers.set("authorization", `Bearer ${bearer}`);
  let response: Response;
  try {
    response = await fetch(path, { ...init, headers });
  } catch (error) {
    if (error instanceof DOMException && error.name === "AbortError") throw error;
    throw new ApiError(0, "the gateway cannot be reached");
  }
  if (response.ok) return response;
  if (response.status === 401 && bearer === token()) setToken(null);
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

/** Stores a model file, with its progress from 0 to 1. `fetch` tells no progress of what it sends. */
export function upload(path: string, file: Blob, progress: (done: number) => void): Promise<void> {
  return new Promise((resolve, reject) => {
    const request = new XMLHttpRequest();
    request.open("PUT", path);
    request.setRequestHeader("authorization", `Bearer ${token() ?? ""}`);
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
