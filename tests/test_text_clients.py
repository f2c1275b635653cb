"""The clients of texts that are not installed by default: LangChain, LlamaIndex and Cohere get what PyTorch and transformers compute.

`pip install langchain-openai==1.7.4 llama-index-embeddings-openai==0.7.0 llama-index-embeddings-text-embeddings-inference==0.6.0 cohere==7.3.1` into an
environment with the tests' packages; together they are 150 MB. Without one of them its test is skipped.
"""

import importlib
from importlib.util import find_spec

import numpy as np
import pytest
import torch
from test_serve import Serve
from test_texts import SENTENCES, folder, serving, wanted  # noqa: F401: fixtures
from transformers import BertForSequenceClassification, BertTokenizerFast

DOCUMENTS = ["the dog", "a gateway for models", "nothing"]


def needs(module: str):
    """Skips a test, before its servers are started, where a client is missing."""
    return pytest.mark.skipif(find_spec(module) is None, reason=f"{module} is not installed: the head of this file says how")


@pytest.fixture
def base(serving: Serve) -> str:  # noqa: F811
    return f"http://{serving.inference}"


@needs("langchain_openai")
def test_langchain_embeds_texts_and_is_told_to_send_no_tokens(base: str, wanted: np.ndarray):  # noqa: F811
    embeddings = importlib.import_module("langchain_openai").OpenAIEmbeddings
    given = {"model": "minilm", "base_url": f"{base}/v1", "api_key": "none", "max_retries": 0}
    client = embeddings(**given, check_embedding_ctx_length=False)
    np.testing.assert_allclose(client.embed_documents(SENTENCES), wanted, atol=2e-5)
    np.testing.assert_allclose(client.embed_query(SENTENCES[0]), wanted[0], atol=2e-5)
    np.testing.assert_allclose(np.linalg.norm(embeddings(**given, check_embedding_ctx_length=False, dimensions=32).embed_query("a")), 1, atol=1e-5)


@needs("llama_index")
def test_llama_index_embeds_texts_by_both_apis(base: str, wanted: np.ndarray):  # noqa: F811
    client = importlib.import_module("llama_index.embeddings.openai").OpenAIEmbedding(model_name="minilm", api_base=f"{base}/v1", api_key="none", max_retries=0)
    sentences = [sentence for sentence in SENTENCES if sentence]
    expected = wanted[[i for i, sentence in enumerate(SENTENCES) if sentence]]
    np.testing.assert_allclose(client.get_text_embedding_batch(sentences), expected, atol=2e-5)
    np.testing.assert_allclose(client.get_query_embedding(sentences[0]), expected[0], atol=2e-5)
    tei = importlib.import_module("llama_index.embeddings.text_embeddings_inference").TextEmbeddingsInference
    client = tei(model_name="minilm", base_url=f"{base}/tei/minilm")
    np.testing.assert_allclose(client.get_text_embedding_batch(sentences), expected, atol=2e-5)


@needs("cohere")
def test_cohere_ranks_documents(base: str, folder):  # noqa: F811
    cohere = importlib.import_module("cohere")
    tokenizer = BertTokenizerFast.from_pretrained(folder.parent / "ranks")
    ranks = BertForSequenceClassification.from_pretrained(folder.parent / "ranks").eval()
    pairs = tokenizer([("which model", document) for document in DOCUMENTS], return_tensors="pt", padding=True)
    with torch.no_grad():
        relevant = ranks(**pairs).logits[:, 0].sigmoid()
    best = relevant.argsort(descending=True)[:2].tolist()
    for client in (cohere.ClientV2("none", base_url=base), cohere.Client("none", base_url=base)):
        given = client.rerank(model="ranks", query="which model", documents=DOCUMENTS, top_n=2)
        assert [item.index for item in given.results] == best
        np.testing.assert_allclose([item.relevance_score for item in given.results], relevant[best], atol=1e-5)
        with pytest.raises(cohere.NotFoundError):
            client.rerank(model="nothing", query="q", documents=["a"])
