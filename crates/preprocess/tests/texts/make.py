"""Trains three small tokenizers and writes what Hugging Face's own package makes of the texts: `python make.py`, with tokenizers 0.23."""

import json
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

FOLDER = Path(__file__).parent
PROSE = [
    "A gateway decides which model runs on which device, how often, and with which batch size.",
    "Requests that are answered within their objective count; the others were computed in vain.",
    "The quick brown fox jumps over the lazy dog, and the dog does not mind at all.",
    "What the planner does not know it learns from the batches that it sees.",
    "Nine models were placed on one node, and nobody sent a request to any of them.",
]
TEXTS = [
    *PROSE,
    "",
    " ",
    "  leading and   inner spaces ",
    "tabs\tand\nlines\r\n",
    "UPPER lower MiXeD",
    "don't, can't; won't: they'll!",
    "3.14159, 1,000,000 and 0x7f; 50% of $20 (€18)",
    "fn main() { println!(\"{}\", x[0]); } // a comment",
    "https://example.com/a/b?c=d&e=f#g",
    "Ünïcödé ñandú œuvre ß ẞ Å",
    "Straße, café, naïve, cafe\u0301, nai\u0308ve",
    "日本語のテキストと中文字符",
    "Привет, мир! Ελληνικά, עברית, العربية, हिन्दी, ไทย",
    "👩‍👩‍👧‍👦 👍🏽 🇩🇪 ☃️",
    "zero\u200bwidth\u200djoiner and\u00a0no-break \ufeffmark",
    "\u0000null and \u0007bell and \u001b[31mred",
    "\ufffd replacement \u202eright to left",
    "[CLS] [SEP] [PAD] [UNK] [MASK] <s> </s> <pad> <|endoftext|>",
    "a" * 300,
    "abc" * 200,
    "word " * 200,
    "ﬁﬂﬀ ①②③ ½ ㎏ Ⅷ",
    "𝕳𝖊𝖑𝖑𝖔 𐍈 \U0010ffff",
    "....!!!???---___",
]
CUTS = [4, 7, 16]
PAIRS = [(one, other) for one in TEXTS[::4] for other in TEXTS[1::5]]


def wordpiece() -> Tokenizer:
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]", max_input_chars_per_word=100))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokenizer.train_from_iterator(PROSE, trainers.WordPieceTrainer(vocab_size=400, special_tokens=special, show_progress=False))
    ids = {name: tokenizer.token_to_id(name) for name in special}
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS]:0 $A:0 [SEP]:0", pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1", special_tokens=[("[CLS]", ids["[CLS]"]), ("[SEP]", ids["[SEP]"])]
    )
    # As files of sentence embeddings have it: it must not count.
    tokenizer.enable_truncation(8)
    tokenizer.enable_padding(length=8, pad_id=ids["[PAD]"])
    return tokenizer


def bytelevel() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=500, special_tokens=special, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(PROSE, trainer)
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0), add_prefix_space=False)
    tokenizer.enable_padding(pad_id=1, pad_token="<pad>")
    return tokenizer


def unigram() -> Tokenizer:
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    special = ["<s>", "<pad>", "</s>", "<unk>"]
    trainer = trainers.UnigramTrainer(vocab_size=300, special_tokens=special, unk_token="<unk>", show_progress=False)
    tokenizer.train_from_iterator(PROSE, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", pair="$A </s> $B </s>", special_tokens=[("</s>", 2)])
    return tokenizer


def encoded(tokenizer: Tokenizer, text: str | tuple[str, str], limit: int | None) -> dict[str, list[int]]:
    tokenizer.no_padding()
    tokenizer.no_truncation()
    if limit is not None:
        tokenizer.enable_truncation(limit)
    encoding = tokenizer.encode(*text) if isinstance(text, tuple) else tokenizer.encode(text)
    return {"ids": encoding.ids, "type_ids": encoding.type_ids}


expected = {}
for make in (wordpiece, bytelevel, unigram):
    made = make()
    made.save(str(FOLDER / f"{make.__name__}.json"), pretty=False)
    whole = [encoded(made, text, None) for text in TEXTS]
    cut = {str(limit): [encoded(made, text, limit) for text in TEXTS] for limit in CUTS}
    pairs = [[encoded(made, pair, limit) for limit in (None, 9, 12)] for pair in PAIRS]
    expected[make.__name__] = {"whole": whole, "cut": cut, "pairs": pairs}
(FOLDER / "pairs.json").write_text(json.dumps(PAIRS, indent=1) + "\n")
(FOLDER / "texts.json").write_text(json.dumps(TEXTS, indent=1) + "\n")
(FOLDER / "expected.json").write_text(json.dumps(expected, separators=(",", ":")) + "\n")
