/** The family of a model and its accuracy, as they are typed. */

import type { ModelRegistration } from "./api/types";

/** The names of models and families, in the form of an input's `pattern`. */
export const NAME_PATTERN = "[A-Za-z0-9][A-Za-z0-9._\\-]{0,127}";

/**
 * Returns both, or neither where both are empty.
 *
 * @throws An error for people where one is missing or wrong.
 */
export function variantOf(family: string, accuracy: string): Pick<ModelRegistration, "family" | "accuracy"> {
  const [name, text] = [family.trim(), accuracy.trim()];
  if (name === "" && text === "") return {};
  if (name === "") throw new Error("accuracy: only a model of a family has one: give the family too");
  if (!new RegExp(`^${NAME_PATTERN}$`).test(name)) throw new Error("family: expected 1 to 128 letters, digits, dots, dashes and underscores, beginning with a letter or digit");
  const percent = Number(text);
  if (text === "") throw new Error("accuracy: required for a model of a family, in percent");
  if (!(percent >= 0 && percent <= 100)) throw new Error("accuracy: expected a number from 0 to 100");
  return { family: name, accuracy: percent };
}
