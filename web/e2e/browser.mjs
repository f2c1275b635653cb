// Chromium, as quiet as it can be, and a page that fails the run on whatever goes wrong in it.
import { chromium } from "playwright-core";

const QUIET = ["--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"];

export function launch() {
  return chromium.launch({ executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium", headless: true, args: QUIET });
}

/** A page of this size and colours, signed in if there is a token; errors, violations of the page's policy and foreign requests go to `faults`. */
export async function open(browser, origin, { token, faults, width = 1280, height = 800, scheme = "light" }) {
  const context = await browser.newContext({ viewport: { width, height }, colorScheme: scheme, reducedMotion: "reduce", timezoneId: "Europe/Zurich", locale: "en-GB" });
  const page = await context.newPage();
  page.on("pageerror", (error) => faults.push(`error in the page: ${error.stack ?? error}`));
  // The gateway is killed and restarted meanwhile, which ends what it was asked just then in one of three ways.
  page.on("console", (message) => {
    if (message.type() === "error" && !/status of (400|401|404|50[23])|ERR_CONNECTION_REFUSED|ERR_CONNECTION_RESET|ERR_INCOMPLETE_CHUNKED/.test(message.text())) faults.push(`console: ${message.text()}`);
  });
  page.on("request", (request) => {
    if (!request.url().startsWith(origin) && !request.url().startsWith("blob:")) faults.push(`request to ${request.url()}`);
  });
  if (token) {
    const answer = await context.request.post(`${origin}/v1/session`, { data: { token } });
    if (!answer.ok()) throw new Error(`signing in: ${answer.status()} ${await answer.text()}`);
  }
  return page;
}
