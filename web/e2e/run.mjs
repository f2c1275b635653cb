// The dashboard in Chromium against a real gateway with simulated devices, as an operator uses it. Pictures of every view go to target/dashboard;
// `--bless` also renews those of docs/dashboard.
import assert from "node:assert/strict";
import { copyFileSync, mkdirSync, readdirSync, readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { gzipSync } from "node:zlib";
import { launch, open } from "./browser.mjs";
import { Cluster, tensor, until } from "./cluster.mjs";
import { serveFleet } from "./fleet.mjs";

const AXE = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
const PICTURES = new URL("../../target/dashboard/", import.meta.url).pathname;
/** A photograph, and a tokenizer. */
const PHOTOGRAPH = new URL("../../crates/preprocess/tests/pictures/420.jpg", import.meta.url);
const TOKENIZER = new URL("../../crates/preprocess/tests/texts/wordpiece.json", import.meta.url);
/** The pictures of the book. */
const BOOK = new URL("../../docs/dashboard/", import.meta.url).pathname;
/** The windows of the pictures. */
const SIZES = { wide: { width: 1440, height: 900 }, phone: { width: 390, height: 844 } };
/** The compressed size of script and style that the page may have, in bytes. */
const BUDGET = 200_000;
/** The pages of which there are pictures, and which must be accessible. */
const VIEWS = {
  overview: "#/",
  incidents: "#/incidents",
  models: "#/models",
  model: "#/models/vgg19",
  placement: "#/placement",
  plans: `#/plans?whatif=${encodeURIComponent('{"policy":"nexus"}')}`,
  change: "#/plans?plan=3",
  timeline: "#/timeline",
  requests: "#/timeline?show=requests",
  try: "#/try/alexnet",
  experiments: "#/experiments",
};

const faults = [];
const began = performance.now();
let clicks = 0;

async function step(name, act) {
  const begin = performance.now();
  await act();
  console.log(`${name.padEnd(68, ".")} ${((performance.now() - begin) / 1000).toFixed(1).padStart(5)} s`);
}

const GRAFANA = "https://grafana.example.com";
const cluster = await new Cluster().start("--discipline", "deadline", "--grafana-url", GRAFANA);
const origin = process.env.DASHBOARD ?? cluster.admin;
const browser = await launch();
const unloads = [];
try {
  await run();
} catch (error) {
  console.error(`the cluster's logs are in ${cluster.folder}`);
  throw error;
} finally {
  for (const unload of unloads) unload();
  await browser.close();
  await cluster.stop();
}
assert.deepEqual(faults, [], "the page has failed");
console.log(`in all ${((performance.now() - began) / 1000).toFixed(1)} s`);

async function run() {
  const page = await open(browser, origin, { faults });
  page.setDefaultTimeout(20_000);
  const click = async (locator) => {
    clicks += 1;
    await locator.click();
  };
  const button = (name) => page.getByRole("button", { name, exact: true });
  const link = (name) => page.getByRole("link", { name, exact: true });
  const heading = (name) => page.getByRole("heading", { level: 1, name });
  const see = (text) => page.getByText(text).first().waitFor();
  const go = async (address) => {
    await page.evaluate((hash) => (location.hash = hash), address);
  };

  await step("the page is small", async () => {
    const sizes = await Promise.all(["/", "/dashboard.js", "/dashboard.css"].map(async (path) => gzipSync(Buffer.from(await (await fetch(origin + path)).arrayBuffer())).length));
    const total = sizes.reduce((a, b) => a + b);
    console.log(`  ${(total / 1000).toFixed(0)} kB compressed`);
    assert.ok(total <= BUDGET, `${total} bytes`);
  });

  await step("a wrong token is refused, the right one opens the overview", async () => {
    await page.goto(origin);
    await page.getByLabel("Admin token").fill("wrong");
    await button("Sign in").click();
    await page.getByRole("alert").waitFor();
    await accessible(page, "sign-in");
    await page.getByLabel("Admin token").fill(cluster.token);
    const begin = performance.now();
    await button("Sign in").click();
    await heading("Overview").waitFor();
    console.log(`  first view ${(performance.now() - begin).toFixed(0)} ms after the token`);
    await see("No node has joined yet.");
    await accessible(page, "empty overview");
    // No script can read the session.
    const stored = await page.evaluate(() => [Object.keys(sessionStorage), Object.keys(localStorage), document.cookie]);
    assert.deepEqual(stored, [[], [], ""]);
    const [cookie] = await page.context().cookies();
    assert.deepEqual([cookie.name, cookie.httpOnly, cookie.sameSite], ["packhorse_session", true, "Strict"]);
  });

  const node1 = cluster.agent("rack-a-1", 2);
  const node2 = cluster.agent("rack-a-2", 2);

  await step("a model is registered from its files and becomes ready", async () => {
    await link("Models").click();
    await see("No model is registered yet.");
    await button("Register a model").click();
    const registration = { name: "alexnet", max_batch_size: 16, slo_ms: 150, rate_rps: 60, inputs: [{ name: "x", datatype: "FP32", shape: [-1, 4] }], outputs: [{ name: "y", datatype: "FP32", shape: [-1, 2] }], postprocess: { y: { top_k: 1, labels: "labels.txt" } } };
    await page.getByLabel("Model file").setInputFiles([
      { name: "alexnet.json", mimeType: "application/json", buffer: Buffer.from(JSON.stringify(registration)) },
      { name: "alexnet.pt", mimeType: "application/octet-stream", buffer: Buffer.from("the file of alexnet") },
      { name: "labels.txt", mimeType: "text/plain", buffer: Buffer.from("cat\ndog\n") },
    ]);
    await page.getByLabel("Shape of input 1").and(page.locator('[value="-1, 4"]')).waitFor();
    await accessible(page, "registration");
    const isValid = (label) => page.getByLabel(label, { exact: true }).evaluate((input) => input.checkValidity());
    await page.getByLabel("Family", { exact: true }).fill("classifiers");
    assert.equal(await isValid("Accuracy (%)"), false);
    await page.getByLabel("Accuracy (%)").fill("101");
    assert.equal(await isValid("Accuracy (%)"), false);
    await page.getByLabel("Accuracy (%)").fill("56.5");
    assert.equal(await isValid("Accuracy (%)"), true);
    await page.getByLabel("Family", { exact: true }).fill("");
    assert.equal(await isValid("Family"), false);
    await page.getByLabel("Family", { exact: true }).fill("classifiers");
    await button("Register").click();
    await heading("alexnet version 1").waitFor();
    await page.locator(".lead .state.good").waitFor();
    const view = await cluster.get("/v1/models/alexnet");
    assert.deepEqual([view.slo_ms, view.family, view.accuracy], [150, "classifiers", 56.5]);
    assert.deepEqual(view.postprocess, { y: { softmax: false, top_k: 1, labels: ["cat", "dog"] } });
    // The other steps are with models in no family.
    await cluster.call("PATCH", "/v1/models/alexnet", { family: null });
  });

  await step("requests are seen as goodput", async () => {
    for (const [name, more] of [["resnet50", { rate_rps: 40 }], ["densenet121", { rate_rps: 40, slo_ms: 100 }], ["vgg19", { rate_rps: 20 }], ["efficientnet_b7", { rate_rps: 25, slo_ms: 60 }]]) await cluster.register(name, more);
    await until("all models to be ready", async () => (await cluster.get("/v1/models")).every((model) => model.state === "ready"));
    for (const [name, rps] of [["alexnet", 30], ["resnet50", 20], ["densenet121", 30], ["vgg19", 10], ["efficientnet_b7", 20]]) unloads.push(cluster.load(name, rps));
    await go("#/");
    await page.waitForFunction(() => [...document.querySelectorAll(".figure")].some((f) => f.querySelector(".label").textContent === "Goodput" && parseFloat(f.querySelector(".value").textContent) > 1));
    await page.locator(".chart canvas").waitFor();
  });

  await step("the window of a chart is in the address", async () => {
    const windows = page.getByRole("group", { name: "Time window" });
    await windows.getByRole("link", { name: "6 h" }).click();
    await page.waitForFunction(() => location.hash === "#/?window=6h");
    await page.reload();
    await heading("Overview").waitFor();
    assert.equal(await windows.locator("[aria-current]").innerText(), "6 h");
    const began = Date.now() - 600_000;
    await go(`#/models/vgg19?since=${began}`);
    await windows.getByText(/^since /).waitFor();
    await windows.getByRole("link", { name: "24 h" }).click();
    await page.waitForFunction(() => location.hash === "#/models/vgg19?window=24h");
    const grafana = page.getByRole("link", { name: "Grafana" });
    assert.equal(await grafana.getAttribute("href"), `${GRAFANA}/d/packhorse-model?from=now-24h&to=now&var-model=vgg19`);
    await go(`#/placement?device=${encodeURIComponent("rack-a-1/sim0")}`);
    await page.getByRole("heading", { name: "Device rack-a-1/sim0" }).waitFor();
    await page.getByRole("img", { name: /^Part of the time/ }).waitFor();
    await go("#/models/vgg19");
  });

  await step("SLO and rate change", async () => {
    await go("#/models/vgg19");
    await button("Change SLO or rate").click();
    await page.getByLabel("SLO (ms)").fill("900");
    await page.getByLabel("Reserved rate (requests/s)").fill("25");
    await accessible(page, "change of a model");
    await button("Change").click();
    await until("the change", async () => {
      const model = await cluster.get("/v1/models/vgg19");
      return model.slo_ms === 900 && model.rate_rps === 25;
    });
    await see("SLO 900 ms");
  });

  await step("a version is registered, split off, promoted and rolled back", async () => {
    await cluster.register("vgg19", { version: 2, rate_rps: 25, slo_ms: 900 });
    await page.getByRole("link", { name: "2", exact: true }).or(page.locator("strong", { hasText: /^2$/ })).first().waitFor();
    await until("version 2 to be ready", async () => (await cluster.get("/v1/models/vgg19?version=2")).state === "ready");
    await button("Split").click();
    await page.getByLabel("Share of version 2 in percent").fill("30");
    await page.getByLabel("Share of version 1 in percent").fill("60");
    assert.ok(await button("Apply split").isDisabled());
    await page.getByLabel("Share of version 1 in percent").fill("70");
    await button("Apply split").click();
    await see("split by hand");
    assert.deepEqual((await cluster.get("/v1/models/vgg19")).split, { 1: 70, 2: 30 });
    await page.getByRole("row", { name: /^2 / }).getByRole("button", { name: "Promote" }).click();
    await until("the promotion", async () => (await cluster.get("/v1/models/vgg19")).split?.["2"] === 100);
    await button("Roll back to 1: 70 %, 2: 30 %").click();
    await until("the rollback", async () => (await cluster.get("/v1/models/vgg19")).split?.["2"] === 30);
    // There is nothing to return to any more.
    await page.getByRole("button", { name: /^Roll back/ }).waitFor({ state: "detached" });
    await go("#/timeline?show=audit&subject=vgg19");
    await page.getByRole("row", { name: /model\.roll-back/ }).getByText('split {"2":100} → {"1":70,"2":30}').waitFor();
    await page.getByLabel("Kind of act").selectOption("node");
    await see("There is no such act.");
    await accessible(page, "audit log");
    await go("#/models/vgg19");
  });

  await step("a what-if is previewed and applied", async () => {
    await go("#/plans");
    await page.getByLabel("Policy").selectOption("first-fit");
    await see("Goodput then");
    await accessible(page, "what-if");
    const slider = page.getByLabel(/^Devices of kind/);
    await slider.focus();
    await slider.press("ArrowRight");
    await see("of kind V100-SXM2-16GB: 4 + 1");
    await see("no plan exceeds it");
    await slider.press("ArrowLeft");
    await slider.press("ArrowLeft");
    await see("of kind V100-SXM2-16GB: 4 − 1");
    assert.equal((await cluster.get("/v1/policy")).policy, "goodput");
    await slider.press("ArrowRight");
    await button("Apply …").click();
    await see("The policy becomes first-fit.");
    await button("Apply").click();
    await until("the policy", async () => (await cluster.get("/v1/policy")).policy === "first-fit");
    await until("a plan of the policy", async () => (await cluster.get("/v1/plan")).policy === "first-fit");
    await page.getByRole("cell", { name: "first-fit" }).first().waitFor();
    await cluster.call("PUT", "/v1/policy", { policy: "goodput" });
    const begin = performance.now();
    const names = new Set((await cluster.get("/v1/models")).map((model) => model.name));
    const models = [...names].map((name) => ({ name: `${name}-more`, profile_of: name, rate_rps: 400 }));
    const answer = await cluster.call("POST", "/v1/plans/preview", { devices: [{ kind: "V100-SXM2-16GB", count: 96 }], models });
    const { plan } = await answer.json();
    console.log(`  a preview for 100 devices: ${(performance.now() - begin).toFixed(0)} ms, ${plan.replicas.length} replicas on ${plan.devices_used} of them`);
  });

  await step("a model to add is planned with the profiles of another", async () => {
    await go("#/plans");
    await page.getByLabel("Add a model like").selectOption("alexnet");
    await page.getByRole("row", { name: /^alexnet-2:1 / }).waitFor();
    await page.getByLabel("Rate of alexnet-2 in requests per second").fill("7");
    await page.getByRole("row", { name: /^alexnet-2:1 7.0\/s – 7.0\/s/ }).waitFor();
    await page.getByLabel("Include alexnet-2").click();
    await see("Nothing is different yet.");
  });

  await step("a plan of the past shows what it changed on the map, and what came true", async () => {
    // A plan that is replaced before its requests were counted has no outcome.
    await until("an outcome of the current plan", async () => (await cluster.get("/v1/plans"))[0].outcome?.predicted_rps > 0);
    await cluster.call("PATCH", "/v1/models/vgg19", { rate_rps: 35 });
    await until("an outcome of a replaced plan", async () => (await cluster.get("/v1/plans")).slice(1).some((plan) => plan.outcome?.predicted_rps > 0));
    await go("#/plans");
    await page.getByLabel(/^In .*: .* requests\/s in time of .* predicted and .* offered$/).first().waitFor();
    const [newest, replaced] = await cluster.get("/v1/plans?limit=2");
    await button(String(newest.generation)).click();
    const dialog = page.getByRole("dialog");
    await dialog.getByRole("region", { name: `Plan ${replaced.generation}` }).waitFor();
    await dialog.getByRole("region", { name: `Plan ${newest.generation}` }).waitFor();
    const outlined = await dialog.locator(".bar-of.memory .replica.outlined").count();
    const diff = await cluster.get(`/v1/plans/${replaced.generation}/diff/${newest.generation}`);
    assert.equal(outlined, diff.added.length + diff.removed.length);
    await accessible(page, "plan of the past");
    await page.keyboard.press("Escape");
  });

  await step("a request is tried, and its time is shown", async () => {
    await go("#/try/alexnet");
    await button("Send").click();
    await page.getByText(/^answered/).waitFor();
    await see("FP32 [1, 2]");
    await page.getByLabel("JSON (Open Inference Protocol)").fill('{"inputs": []}');
    await button("Send").click();
    await page.getByRole("alert").waitFor();
    await page.getByLabel("JSON (Open Inference Protocol)").fill("{");
    await button("Send").click();
    await see(/the request is not JSON/);
  });

  await step("a picture and a sentence are tried as they are", async () => {
    const three = { slo_ms: 2000, inputs: [tensor("image", [-1, 3, 32, 32])], outputs: [tensor("moods", [-1, 3])] };
    const classes = { moods: { top_k: 2, labels: ["dull", "fair", "fine"] } };
    await cluster.register("mobilenet_v2", { ...three, preprocess: { image: { kind: "image", resize: { exact: [32, 32] }, channels: "RGB", layout: "NCHW" } }, postprocess: classes });
    const tokenizer = readFileSync(TOKENIZER);
    const text = { kind: "text", tokenizer: await cluster.store(tokenizer), max_length: 64, inputs: { ids: "ids" } };
    await cluster.register("bert", { slo_ms: 2000, inputs: [{ name: "ids", datatype: "INT64", shape: [-1, -1] }], outputs: three.outputs, preprocess: { text }, postprocess: classes });
    for (const name of ["mobilenet_v2", "bert"]) await until(`${name} to be ready`, async () => (await cluster.get(`/v1/models/${name}`)).state === "ready");
    await go("#/try/mobilenet_v2");
    await button("Send").click();
    await see("choose a picture first");
    const picture = readFileSync(PHOTOGRAPH);
    await page.getByLabel("Picture").setInputFiles({ name: "420.jpg", mimeType: "image/jpeg", buffer: picture });
    await page.getByRole("img", { name: "420.jpg" }).waitFor();
    await button("Send").click();
    await page.getByText(/^answered/).waitFor();
    await page.getByRole("cell", { name: "dull 0" }).waitFor();
    assert.equal((await cluster.get("/v1/requests?model=mobilenet_v2&limit=1"))[0].stages_ms.decode > 0, true);
    await accessible(page, "a picture that was tried");
    await page.getByLabel("Send", { exact: true }).selectOption("tensors");
    await page.getByLabel("JSON (Open Inference Protocol)").waitFor();
    await go("#/try/bert");
    await page.getByLabel("Sentence").fill("A good morning, everybody.");
    await button("Send").click();
    await page.getByText(/^answered/).waitFor();
    await page.getByRole("cell", { name: "dull 0" }).waitFor();
    assert.equal((await cluster.get("/v1/requests?model=bert&limit=1"))[0].stages_ms.tokenize > 0, true);
    await accessible(page, "a sentence that was tried");
    for (const name of ["mobilenet_v2", "bert"]) await cluster.call("DELETE", `/v1/models/${name}`);
  });

  await step("three clicks lead from the overview to where a missed request's time went", async () => {
    // Requests that no replica can answer in time.
    await cluster.call("PATCH", "/v1/models/efficientnet_b7", { slo_ms: 5 });
    await until("missed requests", async () => (await cluster.get("/v1/requests?outcome=missed&limit=5")).length > 0);
    await go("#/");
    await heading("Overview").waitFor();
    clicks = 0;
    await click(link("All"));
    await page.getByLabel("pause").waitFor();
    await click(page.getByRole("link", { name: /, request \d+$/ }).first());
    await page.getByRole("img", { name: /^Where the time went/ }).waitFor();
    assert.ok(clicks <= 3, `${clicks} clicks`);
    await accessible(page, "request");
    const [download] = await Promise.all([page.waitForEvent("download"), button("Trace of the seconds around it").click()]);
    const trace = JSON.parse(readFileSync(await download.path(), "utf8"));
    assert.ok((trace.traceEvents ?? trace).length > 0);
    await button("Close").click();
  });

  await step("a request is found by its id, and its address is kept", async () => {
    const body = JSON.stringify({ inputs: [{ name: "x", datatype: "FP32", shape: [1, 4], data: [1, 2, 3, 4] }] });
    const headers = { "content-type": "application/json", "x-request-id": "order-4711" };
    await (await fetch(`${cluster.inference}/v2/models/alexnet/infer`, { method: "POST", headers, body })).text();
    await go("#/timeline?show=requests");
    clicks = 0;
    await page.getByLabel("Find a request by its id").fill("order-4711");
    await page.keyboard.press("Enter");
    await page.getByRole("cell", { name: "order-4711" }).waitFor();
    assert.equal(await page.getByRole("link", { name: /, request \d+$/ }).count(), 1);
    await click(page.getByRole("link", { name: /, request \d+$/ }));
    console.log(`  which request was order-4711: one search, ${clicks} click`);
    await page.reload();
    const dialog = page.getByRole("dialog");
    await dialog.getByText("order-4711").waitFor();
    await dialog.getByRole("img", { name: /^Where the time went/ }).waitFor();
    await button("Close").click();
    await page.getByRole("cell", { name: "order-4711" }).waitFor();
    await page.getByLabel("Find a request by its id").fill("order-4712");
    await page.keyboard.press("Enter");
    await see("There is no such request.");
    // One that reached no model is found as well, with its status.
    await (await fetch(`${cluster.inference}/v2/models/alexnet/infer`, { method: "POST", headers: { ...headers, "x-request-id": "order-4713" }, body: "{" })).text();
    await page.getByLabel("Find a request by its id").fill("order-4713");
    await page.keyboard.press("Enter");
    await page.getByRole("link", { name: /, request \d+$/ }).click();
    await dialog.getByText(/before it reached a model\. 400: /).waitFor();
    await accessible(page, "a rejected request");
    await button("Close").click();
    await page.getByLabel("Find requests by their API key").fill("nobody");
    await page.keyboard.press("Enter");
    await see("There is no such request.");
    assert.match(await page.evaluate(() => location.hash), /id=order-4713&key=nobody/);
  });

  await step("a model that misses its SLO is found, and why", async () => {
    await go("#/");
    await page.locator(".finding").first().waitFor();
    clicks = 0;
    await click(page.locator(".finding", { hasText: "efficientnet_b7" }).getByRole("link", { name: "Show" }).first());
    await heading("efficientnet_b7 version 1").waitFor();
    console.log(`  which model misses its SLO and why: ${clicks} click`);
    await go("#/");
    clicks = 0;
    await click(link("Plans"));
    clicks += 1;
    await page.getByLabel(/^Devices of kind/).press("ArrowRight");
    await see("Goodput then");
    console.log(`  what one more GPU would bring: ${clicks} clicks`);
  });

  let incidentAddress;
  await step("an incident has an address, with its cause, the numbers and the charts of its time", async () => {
    const known = await until("an incident", async () => (await cluster.get("/v1/incidents?model=efficientnet_b7"))[0]);
    await go("#/");
    clicks = 0;
    await click(page.getByRole("navigation").getByRole("link", { name: /^Incidents/ }));
    await click(page.getByRole("link", { name: new RegExp(`^Incident ${known.id} of `) }));
    await heading(`Incident ${known.id}`).waitFor();
    console.log(`  what was wrong, since when and why: ${clicks} clicks`);
    await page.reload();
    await heading(`Incident ${known.id}`).waitFor();
    incidentAddress = await page.evaluate(() => location.hash);
    const cause = page.getByRole("region", { name: "Cause", exact: true });
    await cause.locator(".finding", { hasText: "efficientnet_b7" }).first().waitFor();
    await page.getByRole("img", { name: /around the incident$/ }).waitFor();
    await accessible(page, "incident");
    const evidence = cause.locator(".evidence a[href*='show=requests']").first();
    await evidence.waitFor();
    assert.match(await evidence.getAttribute("href"), /outcome=missed&model=efficientnet_b7&since=\d+/);
    await click(evidence);
    await see(/^Only those that arrived since /);
    await page.getByRole("link", { name: /, request \d+$/ }).first().waitFor();
    await page.goBack();
    await click(cause.getByRole("link", { name: "Show" }).first());
    await heading("efficientnet_b7 version 1").waitFor();
    await page.getByRole("group", { name: "Time window" }).getByText(/^since /).waitFor();
    await go("#/incidents?model=alexnet&open=1");
    await page.waitForFunction(() => document.querySelector("select[aria-label=Model]")?.value === "alexnet");
    assert.ok(await page.getByLabel("that go on").isChecked());
    const over = `since=${Date.now() - 120_000}&until=${Date.now() - 60_000}`;
    await go(`#/timeline?${over}`);
    await page.getByRole("group", { name: "Time window" }).getByText(/ to /).waitFor();
  });

  await step("every view is accessible, in light and dark, and has pictures", async () => {
    const window = page.viewportSize();
    mkdirSync(PICTURES, { recursive: true });
    for (const scheme of ["light", "dark"]) {
      await page.emulateMedia({ colorScheme: scheme });
      for (const [name, address] of Object.entries({ ...VIEWS, incident: incidentAddress })) {
        await go(address);
        await page.locator("main h1").waitFor();
        await page.waitForFunction(() => !document.querySelector(".loading"));
        // Colours alone differ in the dark.
        await accessible(page, `${name} (${scheme})`, scheme === "dark" ? ["color-contrast"] : null);
        if (name === "try") {
          await button("Send").click();
          await page.getByText(/^answered/).waitFor();
        }
        for (const [size, pixels] of Object.entries(SIZES)) {
          await page.setViewportSize(pixels);
          await page.waitForTimeout(300);
          await page.screenshot({ path: `${PICTURES}${name}-${size}-${scheme}.png` });
        }
        await page.setViewportSize(window);
      }
    }
    await page.emulateMedia({ colorScheme: "light" });
  });
  await cluster.call("PATCH", "/v1/models/efficientnet_b7", { slo_ms: 60 });

  await step("a lost node is said at once, on the overview, the map and the timeline", async () => {
    await go("#/");
    node2.expected = true;
    node2.kill("SIGKILL");
    await page.locator(".card", { hasText: "Cluster" }).getByText("lost").first().waitFor();
    await page.locator(".finding", { hasText: "rack-a-2" }).first().waitFor();
    await go("#/placement");
    await page.getByRole("group", { name: "Node rack-a-2" }).getByText("lost").waitFor();
    await go("#/timeline");
    clicks = 0;
    await page.locator(".events li", { hasText: "rack-a-2" }).filter({ hasText: "lost" }).first().waitFor();
    console.log("  what happened: 1 click");
  });

  await step("the page lives through a restart of the gateway", async () => {
    const before = await page.evaluate(() => document.querySelectorAll(".events li").length);
    const ends = async () => (await cluster.get("/v1/history?step_s=10")).requests.at(-1)?.at_ms ?? 0;
    const last = await ends();
    await cluster.stopGateway();
    await page.getByRole("alert").filter({ hasText: /^Not connected since \d+:\d+/ }).waitFor();
    // Ten seconds of the history pass as a whole meanwhile.
    await until("a gap", () => Date.now() > last + 40_000, 60_000);
    await cluster.startGatewayAgain();
    await page.getByRole("status").filter({ hasText: "Live" }).waitFor();
    assert.ok((await page.evaluate(() => document.querySelectorAll(".events li").length)) >= before);
    await until("points after the gap", async () => (await ends()) > last + 20_000);
    const points = (await cluster.get("/v1/history?step_s=10")).requests;
    const gap = points.findIndex((point, i) => i > 0 && point.at_ms > last && point.at_ms - points[i - 1].at_ms > 10_000);
    assert.ok(gap > 0, "what is not known is not there");
    assert.ok(points.slice(0, gap).some((point) => point.in_time > 0), "what happened before is known");
    await page.reload();
    await see(/^\d+ gaps?: the gateway was down/);
    await go(incidentAddress);
    await see("The gateway does not remember this incident.");
  });

  await step("eight tabs have one stream, and the next of them takes it over", async () => {
    const tabs = [];
    let streams = 0;
    for (let i = 0; i < 8; i++) {
      const tab = await page.context().newPage();
      tab.on("request", (request) => (streams += request.url() === `${origin}/v1/events` ? 1 : 0));
      await tab.goto(`${origin}/#/models/alexnet`);
      await tab.getByRole("heading", { level: 1, name: "alexnet" }).waitFor();
      tabs.push(tab);
    }
    for (const tab of tabs) await tab.getByRole("status").filter({ hasText: "Live" }).waitFor();
    assert.equal(streams, 0, "the first page has the stream");
    const seen = (slo) => Promise.all(tabs.map((tab) => tab.getByText(`SLO ${slo} ms`).first().waitFor()));
    await cluster.call("PATCH", "/v1/models/alexnet", { slo_ms: 151 });
    await seen(151);
    await page.goto("about:blank");
    await until("another tab to have the stream", () => streams === 1);
    await cluster.call("PATCH", "/v1/models/alexnet", { slo_ms: 152 });
    await seen(152);
    assert.equal(streams, 1);
    for (const tab of tabs) await tab.close();
    await page.goto(`${origin}/#/timeline`);
    await heading("Timeline").waitFor();
  });

  await step("a model is removed, after a question", async () => {
    await go("#/models/resnet50");
    await button("Remove").first().click();
    await see("Remove resnet50:1?");
    await accessible(page, "removal");
    await button("Keep").click();
    assert.equal((await cluster.get("/v1/models/resnet50")).name, "resnet50");
    await button("Remove").first().click();
    await page.getByRole("dialog").getByRole("button", { name: "Remove" }).click();
    await heading("Models").waitFor();
    await until("the removal", async () => !(await cluster.get("/v1/models")).some((model) => model.name === "resnet50"));
    await page.getByRole("link", { name: "resnet50:1" }).waitFor({ state: "detached" });
  });

  await step("signing out forgets the session", async () => {
    await button("Sign out").click();
    await page.getByLabel("Admin token").waitFor();
    assert.deepEqual(await page.context().cookies(), []);
  });

  await step("a code opens the dashboard once, and a key that may only read finds nothing to change", async () => {
    const key = await (await cluster.call("POST", "/v1/keys", { name: "a reader", scopes: ["read"] })).json();
    const made = await fetch(`${origin}/v1/session/codes`, { method: "POST", headers: { authorization: `Bearer ${key.key}` } });
    const { code } = await made.json();
    const reader = await open(browser, origin, { faults });
    await reader.goto(`${origin}/#/sign-in?code=${code}`);
    await reader.getByRole("heading", { level: 1, name: "Overview" }).waitFor();
    await reader.getByText("Read-only").waitFor();
    assert.equal(new URL(reader.url()).hash, "#/");
    for (const [place, title, forbidden] of [["models", "Models", "Register a model"], ["models/alexnet", "alexnet", "Remove"], ["placement", "Placement", "Drain"], ["plans", "Plans", "Apply …"]]) {
      await reader.evaluate((hash) => (location.hash = hash), `#/${place}`);
      await reader.getByRole("heading", { level: 1, name: title }).waitFor();
      assert.equal(await reader.getByRole("button", { name: forbidden }).count(), 0, `${forbidden} on ${place}`);
    }
    await accessible(reader, "read-only");
    await reader.context().close();
    const late = await open(browser, origin, { faults });
    await late.goto(`${origin}/#/sign-in?code=${code}`);
    await late.getByText("valid once").waitFor();
    await late.getByLabel("Admin token").waitFor();
    await late.context().close();
  });
  await page.context().close();
  node1.expected = true;
  await step("1,000 models on 500 devices, changing twice a second", () => large());
}

async function accessible(page, what, rules = null) {
  // Trusted types forbid the page to make scripts of texts; the test's own come by the debugger.
  await page.evaluate(AXE);
  const violations = await page.evaluate(async (rules) => (await axe.run(document, { resultTypes: ["violations"], ...(rules && { runOnly: rules }) })).violations.map(({ id, nodes }) => `${id}: ${nodes.slice(0, 3).map((node) => `${node.target} ${node.failureSummary?.split("\n")[1] ?? ""}`).join("; ")}`), rules);
  for (const violation of violations) faults.push(`accessibility of ${what}: ${violation}`);
}

/** Measures frame times and paint; speed is told, not asserted. */
async function large() {
  const made = await serveFleet(origin, 1000, 500);
  const page = await open(browser, made.origin, { token: "any", faults });
  try {
    await page.goto(`${made.origin}/#/models`);
    await page.getByRole("link", { name: "model-0:1" }).waitFor();
    assert.ok((await page.locator("tbody tr").count()) < 80, "the table draws what is not in sight");
    const frames = await page.evaluate(async () => {
      const table = document.querySelector(".table");
      const times = [];
      let last = performance.now();
      for (let i = 0; i < 120; i++) {
        table.scrollTop += 90;
        await new Promise(requestAnimationFrame);
        times.push(performance.now() - last);
        last = performance.now();
      }
      return times.sort((a, b) => a - b);
    });
    console.log(`  scrolling: frame times p50 ${frames[60].toFixed(1)} ms, p95 ${frames[114].toFixed(1)} ms, longest ${frames[119].toFixed(1)} ms`);
    const session = await page.context().newCDPSession(page);
    await session.send("Performance.enable");
    const busy = async () => Object.fromEntries((await session.send("Performance.getMetrics")).metrics.map((m) => [m.name, m.value]));
    const from = await busy();
    await page.waitForTimeout(4000);
    const to = await busy();
    console.log(`  at rest: ${(((to.TaskDuration - from.TaskDuration) / (to.Timestamp - from.Timestamp)) * 100).toFixed(1)} % of a core`);
    await page.evaluate(() => (location.hash = "#/placement"));
    await page.locator("canvas[data-paint-ms]").waitFor();
  } finally {
    await page.context().close();
    made.close();
  }
  const huge = await serveFleet(origin, 2000, 6000);
  const map = await open(browser, huge.origin, { token: "any", faults });
  try {
    await map.goto(`${huge.origin}/#/placement`);
    await map.locator("canvas[data-paint-ms]").waitFor();
    await map.screenshot({ path: `${PICTURES}fleet-wide-light.png` });
    console.log(`  6,000 devices painted in ${Number(await map.locator("canvas").getAttribute("data-paint-ms")).toFixed(1)} ms`);
  } finally {
    await map.context().close();
    huge.close();
  }
}

if (process.argv.includes("--bless")) {
  for (const name of readdirSync(BOOK)) if (name.endsWith(".png")) copyFileSync(PICTURES + name, BOOK + name);
}
