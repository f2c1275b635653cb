"""Clients that attack one address: the gateway, or a sink that does nothing but read, so that both cost the attacker's machine the same."""

import gzip
import json
import multiprocessing
import os
import socket
import socketserver
import threading
import time
from collections.abc import Callable
from contextlib import contextmanager

IMAGE = 150_528  # numbers of FP32: 0.6 MB, as of one picture of 224 x 224
WIDE = 4_000_000  # numbers of UINT8: 8 MB of JSON, more than a socket holds


def head(model: str, length: int, more: str = "") -> bytes:
    return f"POST /v2/models/{model}/infer HTTP/1.1\r\nhost: localhost\r\ncontent-length: {length}\r\n{more}\r\n".encode()


def post(model: str, body: bytes, more: str = "") -> bytes:
    return head(model, len(body), more) + body


def json_request(columns: int, number: str = "0.5") -> bytes:
    numbers = ",".join([number] * columns)
    return f'{{"inputs":[{{"name":"x","datatype":"FP32","shape":[1,{columns}],"data":[{numbers}]}}]}}'.encode()


SMALL = json_request(4)


def read_answer(connection: socket.socket) -> tuple[int, bool]:
    """The status, and whether the connection is kept."""
    received = b""
    while b"\r\n\r\n" not in received:
        piece = connection.recv(65536)
        if not piece:
            raise ConnectionError("closed")
        received += piece
    top, _, rest = received.partition(b"\r\n\r\n")
    lines = top.lower().split(b"\r\n")
    if b"transfer-encoding: chunked" in lines:
        while not rest.endswith(b"0\r\n\r\n"):
            piece = connection.recv(1 << 20)
            if not piece:
                raise ConnectionError("closed")
            rest = rest[-5:] + piece
        return int(lines[0].split()[1]), True
    length = next(int(line.split(b":")[1]) for line in lines if line.startswith(b"content-length:"))
    left = length - len(rest)
    while left > 0:
        piece = connection.recv(min(left, 1 << 20))
        if not piece:
            raise ConnectionError("closed")
        left -= len(piece)
    return int(lines[0].split()[1]), b"connection: close" not in lines


def again(address: tuple[str, int], request: bytes) -> None:
    """Sends the request again and again, on a new connection whenever one is closed."""
    while True:
        try:
            with socket.create_connection(address, timeout=20) as connection:
                kept = True
                while kept:
                    connection.sendall(request)
                    _, kept = read_answer(connection)
        except OSError:
            time.sleep(0.01)


def in_threads(count: int, work: Callable, *arguments) -> None:
    threads = [threading.Thread(target=work, args=arguments, daemon=True) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def huge_bodies(address):
    body = json_head(8, IMAGE) + bytes(8 * 4 * IMAGE)
    more = f"inference-header-content-length: {len(json_head(8, IMAGE))}\r\n"
    in_threads(8, again, address, post("image", body, more))


def json_head(rows: int, columns: int) -> bytes:
    size = 4 * rows * columns
    tensor = {"name": "x", "datatype": "FP32", "shape": [rows, columns], "parameters": {"binary_data_size": size}}
    return json.dumps({"inputs": [tensor]}).encode()


def large_json(address):
    in_threads(8, again, address, post("image", json_request(IMAGE, "0.12345678")))


def bad_json(address):
    in_threads(8, again, address, post("image", json_request(IMAGE, "0.12345678")[:-1] + b"!"))


def gzip_bombs(address):
    bomb = gzip.compress(b" " * (64 << 20))
    in_threads(4, again, address, post("image", bomb, "content-encoding: gzip\r\n"))


def compressed_answers(address):
    in_threads(8, again, address, post("wide", SMALL, "accept-encoding: gzip\r\n"))


def many(address, count: int, begin: bytes, step: Callable[[socket.socket], None] | None, pause: float) -> None:
    """Many connections that have sent the beginning; then the step with each of them, and again after a pause."""
    open_ones: list[socket.socket] = []
    while True:
        try:
            while len(open_ones) < count:
                connection = socket.create_connection(address, timeout=5)
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                connection.sendall(begin)
                open_ones.append(connection)
        except OSError:
            time.sleep(0.01)
        if step is not None:
            for connection in list(open_ones):
                try:
                    step(connection)
                except BlockingIOError:
                    pass
                except OSError:
                    open_ones.remove(connection)
                    connection.close()
        time.sleep(pause)


def slow_sending(address):
    many(address, 500, head("image", 4 * IMAGE), lambda connection: connection.sendall(b" " * 100), 1.0)


def slow_reading(address):
    def read(connection):
        if not connection.recv(8192, socket.MSG_DONTWAIT):
            raise ConnectionError("closed")

    many(address, 64, post("wide", SMALL), read, 0.1)


def no_reading(address):
    many(address, 64, post("wide", SMALL), None, 0.5)


def flood(address):
    in_threads(64, again, address, post("small", SMALL))


def new_connections(address):
    def connect():
        while True:
            try:
                with socket.create_connection(address, timeout=20) as connection:
                    connection.sendall(post("small", SMALL, "connection: close\r\n"))
                    read_answer(connection)
            except OSError:
                time.sleep(0.01)

    in_threads(16, connect)


ATTACKS = {
    "huge bodies: 8 connections with 4.8 MB each": huge_bodies,
    "JSON: 8 connections with 1.7 MB each": large_json,
    "bad JSON: the same, with the mistake at the end": bad_json,
    "gzip bombs: 4 connections, 64 MiB of spaces in 64 KB": gzip_bombs,
    "compressed answers: 8 connections, 8 MB of zeros as gzip": compressed_answers,
    "slow sending: 500 connections, 100 bytes/s each": slow_sending,
    "slow reading: 64 connections, answers of 8 MB": slow_reading,
    "no reading: 64 connections, answers of 8 MB": no_reading,
    "flood: 64 connections with small requests": flood,
    "connections: 16 clients that connect for every request": new_connections,
}


@contextmanager
def attack(work: Callable, address: tuple[str, int], processes: int = 1):
    """Runs an attack in processes of its own while the block lasts."""
    context = multiprocessing.get_context("fork")
    running = [context.Process(target=work, args=(address,), daemon=True) for _ in range(processes)]
    for process in running:
        process.start()
    try:
        yield
    finally:
        for process in running:
            process.kill()
            process.join()


class _Sink(socketserver.BaseRequestHandler):
    def handle(self):
        small = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"
        wide = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % (2 * WIDE) + b"0," * WIDE
        received = b""
        try:
            while True:
                while b"\r\n\r\n" not in received:
                    piece = self.request.recv(65536)
                    if not piece:
                        return
                    received += piece
                top, _, received = received.partition(b"\r\n\r\n")
                length = next(int(line[15:]) for line in top.split(b"\r\n") if line.startswith(b"content-length:"))
                left = length - len(received)
                received = received[length:]
                while left > 0:
                    piece = self.request.recv(min(left, 1 << 20))
                    if not piece:
                        return
                    left -= len(piece)
                self.request.sendall(wide if b"/wide/" in top else small)
        except OSError:
            pass


class _SinkServer(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True
    request_queue_size = 1024


@contextmanager
def sink():
    """The address of a sink, which is a process of its own."""
    server = _SinkServer(("127.0.0.1", 0), _Sink)
    process = multiprocessing.get_context("fork").Process(target=server.serve_forever, daemon=True)
    process.start()
    address = server.server_address
    server.socket.close()
    try:
        yield address
    finally:
        process.kill()
        process.join()


class Victim:
    """One client of another model, on a kept connection, which asks at a steady rate while the block lasts."""

    def __init__(self, address: tuple[str, int], model: str, per_second: float):
        self.address, self.request, self.per_second = address, post(model, SMALL), per_second
        self.latencies: list[float] = []
        self.statuses: list[int | str] = []
        self.stopped = threading.Event()
        self.thread = threading.Thread(target=self._ask, daemon=True)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.stopped.set()
        self.thread.join(30)

    def _ask(self):
        connection = None
        due = time.perf_counter()
        while not self.stopped.is_set():
            due += 1 / self.per_second
            time.sleep(max(0.0, due - time.perf_counter()))
            start = time.perf_counter()
            try:
                connection = connection or socket.create_connection(self.address, timeout=20)
                connection.sendall(self.request)
                status, kept = read_answer(connection)
            except OSError as error:
                status, kept = type(error).__name__, False
            self.latencies.append(time.perf_counter() - start)
            self.statuses.append(status)
            if not kept and connection:
                connection.close()
                connection = None

    def quantile_ms(self, quantile: float) -> float:
        ordered = sorted(self.latencies)
        return ordered[min(int(quantile * len(ordered)), len(ordered) - 1)] * 1e3


class MemoryWatch:
    """The largest resident memory of a process while the block lasts."""

    def __init__(self, pid: int):
        self.pid, self.largest = pid, 0
        self.stopped = threading.Event()
        self.thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.stopped.set()
        self.thread.join()

    def _watch(self):
        page = os.sysconf("SC_PAGE_SIZE")
        while not self.stopped.is_set():
            with open(f"/proc/{self.pid}/statm") as statm:
                self.largest = max(self.largest, int(statm.read().split()[1]) * page)
            time.sleep(0.02)


def tuple_address(address: str) -> tuple[str, int]:
    host, port = address.rsplit(":", 1)
    return host, int(port)
