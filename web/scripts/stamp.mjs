// Writes dist/sources.sha256: the SHA-256 over the files that the built ones are made of. A test of the gateway computes it again and so tells,
// without Node, whether dist is stale. Types leave no trace in the script, and tests are not in it.
import { createHash } from "node:crypto";
import { readdirSync, readFileSync, writeFileSync } from "node:fs";
import { fileURLToPath } from "node:url";

const web = fileURLToPath(new URL("..", import.meta.url));
const sources = ["index.html", "package-lock.json", "vite.config.ts"];
for (const folder of ["public", "src"]) {
  for (const entry of readdirSync(web + folder, { recursive: true, withFileTypes: true })) {
    const path = `${entry.parentPath}/${entry.name}`.slice(web.length);
    if (entry.isFile() && path !== "src/api/schema.ts" && !/\.test\.tsx?$/.test(path)) sources.push(path);
  }
}
const hash = createHash("sha256");
for (const path of sources.sort()) {
  const content = readFileSync(web + path);
  hash.update(`${path}\n${content.length}\n`).update(content);
}
writeFileSync(`${web}dist/sources.sha256`, `${hash.digest("hex")}\n`);
