/** What a registration says beside the fields of the form, and the files that it names. */

import type { ModelRegistration, ModelView } from "./api/types";

/** The fields of a registration for which the form has no place. */
export type Rest = Omit<ModelRegistration, "name" | "version" | "artifact" | "max_batch_size" | "slo_ms" | "rate_rps" | "rate" | "priority" | "min_replicas" | "family" | "accuracy" | "inputs" | "outputs">;

/** A registration as a file has it: a tokenizer and labels may be the paths of files beside it. */
export type RegistrationFile = Partial<ModelRegistration>;

/** Takes the fields for which the form has no place. */
export function restOf(read: RegistrationFile): Rest {
  const { name: _n, version: _v, artifact: _a, max_batch_size: _m, slo_ms: _s, rate_rps: _r, rate: _t, priority: _p, min_replicas: _l, family: _f, accuracy: _c, inputs: _i, outputs: _o, ...rest } = read;
  return rest;
}

/** What a new version takes over from the one before. */
export function restOfVersion({ preprocess, postprocess }: Pick<ModelView, "preprocess" | "postprocess">): Rest {
  return { ...(preprocess && { preprocess }), ...(postprocess && { postprocess }) };
}

/** Puts files in place of their paths: `store` stores a tokenizer and returns its digest. Throws where a file is not among those that were given. */
export async function withFiles(rest: Rest, files: readonly File[], store: (file: File) => Promise<string>): Promise<Rest> {
  const named = (field: string, path: string) => {
    const name = path.slice(path.lastIndexOf("/") + 1);
    const file = files.find((given) => given.name === name);
    if (!file) throw new Error(`${field} is the file ${path}: drop it here, too`);
    return file;
  };
  const preprocess = { ...rest.preprocess };
  for (const [input, declared] of Object.entries(preprocess)) {
    if (declared.kind !== "text" || declared.tokenizer.startsWith("sha256:")) continue;
    preprocess[input] = { ...declared, tokenizer: await store(named(`preprocess.${input}.tokenizer`, declared.tokenizer)) };
  }
  const postprocess = { ...rest.postprocess };
  for (const [output, declared] of Object.entries(postprocess)) {
    const labels: unknown = "labels" in declared ? declared.labels : undefined;
    if (!("top_k" in declared) || typeof labels !== "string") continue;
    const text = await named(`postprocess.${output}.labels`, labels).text();
    postprocess[output] = { ...declared, labels: text.replace(/\r?\n$/, "").split(/\r?\n/) };
  }
  return { ...rest, ...(rest.preprocess && { preprocess }), ...(rest.postprocess && { postprocess }) };
}
