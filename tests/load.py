"""A steady load of small requests, and what became of every one of them."""

import json
import threading
import time
from collections import Counter
from dataclasses import dataclass

import urllib3

REQUEST = json.dumps({"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}]}).encode()
# The clients' own default is a minute. Nothing here may come near it.
HANGS = 30.0


@dataclass
class Outcome:
    """When a request ended, and how: a status, or `closed` without an answer, or `hung`."""

    end: float
    how: int | str


class Load:
    """Clients that ask again as soon as they have an answer, until the block ends."""

    def __init__(self, address: str, model: str, clients: int = 8, headers: dict | None = None):
        self.address, self.model, self.headers = address, model, headers
        self.outcomes: list[Outcome] = []
        self.stopped = threading.Event()
        self.threads = [threading.Thread(target=self._ask, daemon=True) for _ in range(clients)]

    def __enter__(self) -> "Load":
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_) -> None:
        self.stopped.set()
        for thread in self.threads:
            thread.join(HANGS + 5)
            assert not thread.is_alive(), "a client hangs"

    def _ask(self) -> None:
        pool = urllib3.HTTPConnectionPool(self.address, timeout=HANGS, retries=False)
        while not self.stopped.is_set():
            try:
                how = pool.urlopen("POST", f"/v2/models/{self.model}/infer", body=REQUEST, headers=self.headers).status
            except urllib3.exceptions.ReadTimeoutError:
                how = "hung"
            except urllib3.exceptions.HTTPError:
                how = "closed"
            self.outcomes.append(Outcome(time.monotonic(), how))
            if how != 200:
                time.sleep(0.01)  # a refused client does not hammer

    def counts(self) -> Counter:
        """How often what happened."""
        return Counter(outcome.how for outcome in self.outcomes)

    def answered(self) -> int:
        return self.counts()[200]
