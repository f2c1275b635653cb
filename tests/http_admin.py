"""The admin API, asked plainly."""

import hashlib
import json
import time
from dataclasses import dataclass
from pathlib import Path

import urllib3


@dataclass
class Answer:
    """A status, the headers, and the body."""

    status: int
    headers: dict[str, str]
    body: bytes

    def json(self):
        return json.loads(self.body)

    @property
    def error(self) -> str:
        """The message of a refusal; whatever the status, its body is `{"error": ...}` and nothing else."""
        assert self.status >= 400, f"{self.status}: {self.body[:300]!r}"
        body = self.json()
        assert list(body) == ["error"] and isinstance(body["error"], str), body
        return body["error"]


def request(
    address: str,
    method: str,
    path: str,
    body: bytes | None = None,
    headers: dict | None = None,
    limit: float = 60.0,
    ca: Path | None = None,
) -> Answer:
    """One request on a connection of its own, over TLS with the file of an authority; the path goes out as it is given."""
    if ca:
        host, _, port = address.rpartition(":")
        pool = urllib3.HTTPSConnectionPool(host, int(port), ca_certs=str(ca), timeout=limit, retries=False)
    else:
        pool = urllib3.HTTPConnectionPool(address, timeout=limit, retries=False)
    answer = pool.urlopen(method, path, body=body, headers=headers or {}, assert_same_host=False, redirect=False)
    pool.close()
    return Answer(answer.status, {name.lower(): value for name, value in answer.headers.items()}, answer.data)


class Admin:
    """The admin API of a gateway, with its token, and with the file of its authority if it uses TLS."""

    def __init__(self, address: str, token: str, ca: Path | None = None):
        self.address = address
        self.ca = ca
        self.token = token

    def call(self, method: str, path: str, body=None, token: str | None = "") -> Answer:
        """`body` is sent as JSON unless it is bytes. `token`: another one, or None for none."""
        headers = {}
        if token is not None:
            headers["authorization"] = f"Bearer {token or self.token}"
        if body is not None and not isinstance(body, bytes):
            body = json.dumps(body).encode()
            headers["content-type"] = "application/json"
        return request(self.address, method, path, body, headers, ca=self.ca)

    def get(self, path: str):
        """The JSON of a successful GET."""
        answer = self.call("GET", path)
        assert answer.status == 200, (path, answer)
        return answer.json()

    def upload(self, data: bytes) -> str:
        """Stores a model file; its digest."""
        digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
        answer = self.call("PUT", f"/v1/artifacts/{digest}", data)
        assert answer.status in (200, 201), answer
        return digest

    def register(self, registration: dict, file: Path | bytes) -> dict:
        """Uploads and registers a model."""
        digest = self.upload(file if isinstance(file, bytes) else file.read_bytes())
        answer = self.call("POST", "/v1/models", {**registration, "artifact": digest})
        assert answer.status == 201, answer
        return answer.json()

    def wait_for_state(self, model: str, state: str, limit: float = 60.0) -> dict:
        """Waits until the model is there on its way; `failed` ends the wait for anything else."""
        end = time.monotonic() + limit
        while True:
            view = self.get(f"/v1/models/{model}")
            if view["state"] == state:
                return view
            assert view["state"] != "failed", view
            assert time.monotonic() < end, f"gave up after {limit} s waiting for {state}: {view}"
            time.sleep(0.05)

    def metric(self, name: str, **labels: str) -> float:
        """The sum of a metric over the series with these labels; 0 where there is none."""
        answer = request(self.address, "GET", "/metrics", ca=self.ca)
        assert answer.status == 200
        total = 0.0
        for line in answer.body.decode().splitlines():
            series, _, value = line.rpartition(" ")
            matches = series == name or series.startswith(name + "{")
            if matches and all(f'{label}="{wanted}"' in series for label, wanted in labels.items()):
                total += float(value)
        return total
