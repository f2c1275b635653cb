// A gateway and agents with simulated devices, as processes in a folder of their own.
import { spawn } from "node:child_process";
import { createHash } from "node:crypto";
import { mkdtempSync, openSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { request, Agent } from "node:http";
import { tmpdir } from "node:os";
import { fileURLToPath } from "node:url";

const root = fileURLToPath(new URL("../..", import.meta.url));
const programs = process.env.PACKHORSE_TEST_PROGRAMS ?? `${root}target/debug`;

/** Calls `check` until it returns something true, and returns that. */
export async function until(what, check, limitMs = 30_000) {
  const end = performance.now() + limitMs;
  for (;;) {
    const value = await check();
    if (value) return value;
    if (performance.now() > end) throw new Error(`gave up after ${limitMs / 1000} s waiting for ${what}`);
    await new Promise((resolve) => setTimeout(resolve, 25));
  }
}

export const tensor = (name, shape) => ({ name, datatype: "FP32", shape });

export class Cluster {
  #children = [];
  #stopped = false;
  folder = mkdtempSync(`${tmpdir()}/packhorse-web-`);

  #spawn(program, args) {
    const log = openSync(`${this.folder}/${args.node ?? program}.log`, "a");
    const child = spawn(`${programs}/${program}`, args.flags, { stdio: ["ignore", log, log] });
    child.on("exit", (code) => {
      if (!this.#stopped && child.expected !== true) console.error(`${program} ended with ${code}; its log is in ${this.folder}`);
    });
    this.#children.push(child);
    return child;
  }

  async start(...flags) {
    this.flags = flags;
    return this.#startGateway(["127.0.0.1:0", `127.0.0.1:${process.env.ADMIN_PORT ?? 0}`]);
  }

  async stopGateway() {
    this.gateway.expected = true;
    const ended = new Promise((resolve) => this.gateway.once("exit", resolve));
    this.gateway.kill("SIGTERM");
    await ended;
  }

  /** Starts the gateway again at the addresses that it had. */
  async startGatewayAgain() {
    await this.#startGateway([this.inference, this.admin].map((url) => url.replace("http://", "")));
  }

  async #startGateway([listen, admin]) {
    const state = `${this.folder}/gateway`;
    this.gateway = this.#spawn("packhorse-gateway", { flags: ["--state-dir", state, "--listen", listen, "--admin-listen", admin, ...this.flags] });
    const endpoints = await until("the gateway to listen", () => {
      try {
        const read = JSON.parse(readFileSync(`${state}/endpoints.json`, "utf8"));
        return read.pid === this.gateway.pid ? read : null;
      } catch {
        return null;
      }
    });
    this.admin = `http://${endpoints.admin}`;
    this.inference = `http://${endpoints.inference}`;
    this.token = readFileSync(`${state}/admin-token`, "utf8").trim();
    return this;
  }

  /** Starts an agent with this many simulated V100s. */
  agent(node, devices) {
    const flags = ["--gateway", this.admin, "--node", node, "--state-dir", `${this.folder}/${node}`];
    flags.push("--token-file", `${this.folder}/gateway/agent-token`, "--stop-workers-on-exit");
    flags.push("--devices", `simulated:V100-SXM2-16GB:${devices}`, "--profiles", this.#profiles());
    return this.#spawn("packhorse-agent", { node, flags });
  }

  /** The thesis' profiles; a second version takes as long as the first. */
  #profiles() {
    const file = `${this.folder}/profiles.csv`;
    const [head, ...rows] = readFileSync(`${root}profiles/v100-thesis.csv`, "utf8").trim().split("\n");
    const second = rows.map((row) => row.replace(",", ":2,"));
    writeFileSync(file, [head, ...rows, ...second, ""].join("\n"));
    return file;
  }

  async get(path) {
    return (await this.call("GET", path)).json();
  }

  async call(method, path, body) {
    const headers = { authorization: `Bearer ${this.token}` };
    if (body !== undefined && !(body instanceof Uint8Array)) headers["content-type"] = "application/json";
    const text = body === undefined || body instanceof Uint8Array ? body : JSON.stringify(body);
    const response = await fetch(this.admin + path, { method, headers, body: text });
    if (!response.ok) throw new Error(`${method} ${path}: ${response.status} ${await response.text()}`);
    return response;
  }

  /** Stores a file, and returns its digest. */
  async store(file) {
    const digest = `sha256:${createHash("sha256").update(file).digest("hex")}`;
    await this.call("PUT", `/v1/artifacts/${digest}`, file);
    return digest;
  }

  /** Registers a model of the thesis' profiles; a simulated device reads no file. */
  async register(name, more = {}) {
    const file = Buffer.from(`the file of ${name} ${more.version ?? 1}`);
    const artifact = await this.store(file);
    const signature = { inputs: [tensor("x", [-1, 4])], outputs: [tensor("y", [-1, 2])] };
    await this.call("POST", "/v1/models", { name, artifact, max_batch_size: 16, slo_ms: 200, rate_rps: 50, ...signature, ...more });
  }

  /** Sends requests to a model at a rate, open loop, until the returned function is called. */
  load(model, rps) {
    const agent = new Agent({ keepAlive: true, maxSockets: 256 });
    const body = JSON.stringify({ inputs: [{ name: "x", datatype: "FP32", shape: [1, 4], data: [1, 2, 3, 4] }] });
    let timer;
    const send = () => {
      timer = setTimeout(send, (-Math.log(1 - Math.random()) * 1000) / rps);
      const options = { method: "POST", agent, headers: { "content-type": "application/json" } };
      const call = request(`${this.inference}/v2/models/${model}/infer`, options, (response) => response.resume());
      call.on("error", () => {});
      call.end(body);
    };
    send();
    return () => {
      clearTimeout(timer);
      agent.destroy();
    };
  }

  /** The workers of agents that were killed: they outlive their agents. */
  #left() {
    return readdirSync("/proc")
      .filter((entry) => /^\d+$/.test(entry))
      .map(Number)
      .filter((pid) => {
        try {
          return pid !== process.pid && readFileSync(`/proc/${pid}/cmdline`, "utf8").includes(this.folder);
        } catch {
          return false;
        }
      });
  }

  async stop() {
    this.#stopped = true;
    for (const child of this.#children.reverse()) {
      if (child.exitCode !== null || child.signalCode !== null) continue;
      const ended = new Promise((resolve) => child.once("exit", resolve));
      child.kill("SIGTERM");
      await ended;
    }
    for (const pid of this.#left()) process.kill(pid, "SIGKILL");
    rmSync(this.folder, { recursive: true, force: true });
  }
}
