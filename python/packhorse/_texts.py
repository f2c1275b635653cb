"""How a text becomes the inputs of a model, as a folder of Hugging Face declares it, for the registration.

The gateway cuts texts by the folder's `tokenizer.json`. Where transformers cuts them otherwise, nothing is declared: clients send tokens then.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

# The name of the input that is a text, and the file that cuts it.
INPUT, FILE = "text", "tokenizer.json"
# What each argument of a model of transformers is filled with.
FILLED = {"input_ids": "ids", "attention_mask": "mask", "token_type_ids": "type_ids"}
# The most tokens of a text that a registration may declare.
MAX_LENGTH = 32_768
# Texts of which the tokens are compared.
SAMPLES = ["A gateway decides which model runs on which device.", "Ünïcödé, naïve: don't! 3.14 (#7) 日本語\n\ttabs  and  spaces", "", "CAPITALS and lower"]


def of_huggingface(folder: Path, inputs: Iterable[str], length: int | None, truncates: bool) -> tuple[dict | None, str | None]:
    """The declaration of a folder's text, or why there is none."""
    names = [name for name in inputs if name in FILLED]
    if not (folder / FILE).is_file() or "input_ids" not in names or set(names) != set(inputs):
        return None, None
    if problem := difference(folder):
        return None, problem
    declared = {"kind": "text", "tokenizer": FILE, "max_length": min(length or MAX_LENGTH, MAX_LENGTH)}
    truncate = {"truncate": True} if truncates else {}
    return declared | truncate | {"inputs": {name: FILLED[name] for name in names}}, None


def arguments(folder: Path) -> list[str] | None:
    """The arguments that the folder's tokenizer fills, if it can be loaded."""
    import transformers

    try:
        return list(transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True).model_input_names)
    except Exception:
        return None


def difference(folder: Path) -> str | None:
    """What the file's tokens differ in from those of transformers; none if they are equal."""
    import tokenizers
    import transformers

    try:
        ours = tokenizers.Tokenizer.from_file(str(folder / FILE))
        theirs = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except Exception as e:
        return f"{FILE} is not read: {type(e).__name__}: {str(e).strip().splitlines()[0] if str(e).strip() else ''}"
    ours.no_padding()
    ours.no_truncation()
    for text in SAMPLES:
        given, wanted = ours.encode(text).ids, theirs(text, truncation=False)["input_ids"]
        if given != wanted:
            return f"{FILE} cuts {text!r} into {given}, and transformers into {wanted}"
    return None


def misfit(declared: Mapping, inputs: Mapping[str, dict]) -> str | None:
    """Why a declaration does not fill these inputs; none if it does."""
    unknown = sorted(set(declared.get("inputs", {})) - set(inputs))
    if unknown:
        return f"there is no input {', '.join(unknown)}"
    for name in declared["inputs"]:
        shape, datatype = inputs[name]["shape"], inputs[name]["datatype"]
        if len(shape) != 2 or datatype not in ("INT64", "INT32"):
            return f"{name} takes {datatype} {list(shape)}, and tokens are INT64 in one dimension of each row"
        most = inputs[name].get("max_shape", [-1, -1])[1] if shape[1] == -1 else shape[1]
        if 0 < most < declared["max_length"]:
            return f"{name} takes at most {most} tokens, and max_length is {declared['max_length']}"
    return None


def embedding_of(outputs: Sequence[dict], declared: Mapping[str, Any]) -> dict[str, dict]:
    """The declaration of the only output as an embedding; nothing if it is not one vector for each row."""
    if len(outputs) != 1 or len(outputs[0]["shape"]) != 2 or outputs[0]["datatype"] not in ("FP32", "FP16", "FP64", "BF16"):
        return {}
    return {outputs[0]["name"]: dict(declared)}
