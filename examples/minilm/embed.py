"""Embeds sentences with all-MiniLM-L6-v2 and finds the closest pair.

    python examples/minilm/embed.py [--url 127.0.0.1:8080] [SENTENCE ...]

The client is the unmodified `tritonclient`, its asyncio side: every sentence is a request of its own, which the gateway cuts into tokens,
and all are under way at once, so that they may be answered in one batch. The clients of OpenAI ask `/v1/embeddings` for the same.
"""

import argparse
import asyncio
import time
from itertools import combinations

import numpy as np
import tritonclient.http.aio as triton

# A request's own deadline, in microseconds, in place of the model's SLO: this computer may be busy.
TIMEOUT_US = 30_000_000

SENTENCES = [
    "A cat sleeps on the warm windowsill.",
    "The packhorse carries its load over the mountain pass.",
    "Interest rates rose for the third time this year.",
    "On the sill of the sunny window a kitten is taking a nap.",
    "How do I reset my password?",
    "Rain.",
]


async def embed(client: triton.InferenceServerClient, sentence: str) -> np.ndarray:
    """The embedding of a sentence: float32 [384], of length 1."""
    text = triton.InferInput("text", [1], "BYTES")
    text.set_data_from_numpy(np.array([sentence.encode()], dtype=np.object_))
    result = await client.infer("minilm", [text], timeout=TIMEOUT_US)
    return result.as_numpy("embedding")[0]


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sentences", nargs="*", default=SENTENCES, help="two or more")
    parser.add_argument("--url", default="127.0.0.1:8080", help="the gateway's inference listener")
    arguments = parser.parse_args()
    if len(arguments.sentences) < 2:
        parser.error("a pair needs two sentences")

    async with triton.InferenceServerClient(arguments.url) as client:
        start = time.perf_counter()
        requests = (embed(client, sentence) for sentence in arguments.sentences)
        embeddings = np.stack(await asyncio.gather(*requests))
        latency_ms = (time.perf_counter() - start) * 1000

    similarity = embeddings @ embeddings.T
    first, second = max(combinations(range(len(embeddings)), 2), key=lambda pair: similarity[pair])
    print(f"all-MiniLM-L6-v2 embedded {len(embeddings)} sentences at once in {latency_ms:.1f} ms; the closest pair:")
    print(f"  {arguments.sentences[first]}")
    print(f"  {arguments.sentences[second]}")
    print(f"  cosine similarity {similarity[first, second]:.3f}")


if __name__ == "__main__":
    asyncio.run(main())
