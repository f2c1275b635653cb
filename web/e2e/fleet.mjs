// A gateway that is made up: many models and devices, and a stream of changes twice a second.
import { createServer } from "node:http";

const KIND = "V100-SXM2-16GB";

/** Returns the parts of a cluster of this size. */
export function fleet(models, devices) {
  const perNode = 8;
  const nodes = Array.from({ length: Math.ceil(devices / perNode) }, (_, n) => ({
    name: `node-${String(n).padStart(4, "0")}`,
    state: "ready",
    agent_version: "0.1.0",
    last_seen_ms: 100,
    devices: Array.from({ length: Math.min(perNode, devices - n * perNode) }, (_, d) => ({ id: `node-${String(n).padStart(4, "0")}/gpu${d}`, kind: KIND, description: KIND, memory_bytes: 17179869184, multiprocessors: 80, gpu: null, replicas: [] })),
  }));
  const all = nodes.flatMap((node) => node.devices);
  const placed = Array.from({ length: Math.max(models, devices) * 2 }, (_, i) => ({ id: `1-${i}`, model: `model-${i % models}`, version: 1, device: all[(i * 7) % all.length].id, device_kind: KIND, batch_size: 8, compute_share_pct: null }));
  const replica = ({ model: _, version: __, ...rest }) => ({ ...rest, state: "ready", serving: true, restarts: 0, pid: 1, reason: null, memory_bytes: 1 << 30, capacity: null });
  const byModel = Map.groupBy(placed, (p) => p.model);
  const views = Array.from({ length: models }, (_, i) => ({
    name: `model-${i}`, version: 1, state: i % 50 === 0 ? "unplaced" : "ready", reason: i % 50 === 0 ? "no device has room" : null, artifact: `sha256:${"0".repeat(64)}`, artifact_bytes: 1, max_batch_size: 8,
    slo_ms: 100, rate_rps: 10, rate: "max", queue_limit: null, share_pct: 100, split: null, sticky: "none", inputs: [], outputs: [], profiled_on: [KIND], profiling: [], replicas: (byModel.get(`model-${i}`) ?? []).map(replica),
  }));
  const plan = { generation: 1, policy: "goodput", created_unix_ms: Date.now(), reason: "it is made up", solve_ms: 1, predicted_goodput_rps: models * 10, replicas: placed, models: views.map(({ name, version }) => ({ name, version, rate_rps: 10, predicted_goodput_rps: 10, replicas: 1, shortfall: null })), unserved: [], devices_used: devices };
  return { models: views, nodes, plan };
}

function goodput(models, window_s) {
  const rates = () => ({ offered_rps: 10 + Math.random(), goodput_rps: 9 + Math.random(), throughput_rps: 10, refused_rps: 0, late_rps: Math.random() });
  return { window_s, total: { ...rates(), offered_rps: models * 10, goodput_rps: models * 9.5 }, models: Array.from({ length: models }, (_, i) => ({ name: `model-${i}`, version: 1, ...rates(), p50_ms: 20, p95_ms: 60, p99_ms: 80 + Math.random() * 30, mean_batch: 4 })) };
}

/** Serves the pages of `origin` beside the made-up cluster. */
export async function serveFleet(origin, models, devices) {
  const cluster = fleet(models, devices);
  const policy = { policy: "goodput", discipline: "deadline", options: {}, policies: [{ name: "goodput", summary: "", source: "" }] };
  const json = (response, body) => response.writeHead(200, { "content-type": "application/json" }).end(JSON.stringify(body));
  const timers = new Set();
  const server = createServer(async (request, response) => {
    const url = new URL(request.url, "http://fleet");
    if (url.pathname === "/v1/goodput") return json(response, goodput(models, Number(url.searchParams.get("window_s"))));
    if (url.pathname === "/v1/findings" || url.pathname === "/v1/requests") return json(response, []);
    if (url.pathname === "/v1/session") return json(response, { name: "admin", scope: "admin", expires_at_ms: Date.now() + 3600_000 });
    if (url.pathname === "/v1/policy") return json(response, policy);
    if (url.pathname === "/v1/profiles") return response.writeHead(200).end("model,device_kind,batch_size,compute_share_pct,latency_ms,memory_mib\n");
    if (url.pathname === "/v1/events" && url.searchParams.get("follow") !== "false") {
      response.writeHead(200, { "content-type": "text/event-stream" });
      const send = (name, data, id) => response.write(`${id ? `id: ${id}\n` : ""}event: ${name}\ndata: ${JSON.stringify(data)}\n\n`);
      send("snapshot", { id: 1, at_ms: Date.now(), ...cluster, policy, findings: [], goodput: goodput(models, 1) }, 1);
      let id = 1;
      const timer = setInterval(() => {
        send("goodput", goodput(models, 1));
        for (let i = 0; i < 10; i++) {
          const model = cluster.models[Math.floor(Math.random() * models)];
          id += 1;
          send("model", { id, kind: "model", at_ms: Date.now(), subject: { model: `${model.name}:1` }, state: "ready", text: `model ${model.name}:1 is ready`, object: model }, id);
        }
      }, 500);
      timers.add(timer);
      response.on("close", () => clearInterval(timer));
      return undefined;
    }
    if (url.pathname.startsWith("/v1/")) return json(response, []);
    const file = await fetch(origin + url.pathname);
    const headers = Object.fromEntries(["content-type", "content-security-policy"].map((name) => [name, file.headers.get(name) ?? ""]));
    return response.writeHead(file.status, headers).end(Buffer.from(await file.arrayBuffer()));
  });
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  return {
    origin: `http://127.0.0.1:${server.address().port}`,
    close: () => {
      for (const timer of timers) clearInterval(timer);
      server.closeAllConnections();
      server.close();
    },
  };
}
