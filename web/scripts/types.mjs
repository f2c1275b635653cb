// Writes src/api/schema.ts, the types of the messages in openapi/gateway.json. The first line names the document's SHA-256, by which a test
// of the gateway tells whether the types are stale.
import { createHash } from "node:crypto";
import { readFileSync, writeFileSync } from "node:fs";
import openapi, { astToString } from "openapi-typescript";

const document = readFileSync(new URL("../../openapi/gateway.json", import.meta.url));
const digest = createHash("sha256").update(document).digest("hex");
const messages = { ...JSON.parse(document), paths: {} };
const types = astToString(await openapi(messages));
const head = `// Generated from openapi/gateway.json (sha256 ${digest}) by cargo xtask web.\n\n`;
writeFileSync(new URL("../src/api/schema.ts", import.meta.url), head + types);
