"""HTTP/2 by hand, as far as it takes to be a bad client of it: frames, and heads without compression."""

import socket
import struct

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = 0, 1, 3, 4, 6, 7, 8, 9
END_STREAM, ACK, END_HEADERS = 1, 1, 4


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def text(value: str) -> bytes:
    assert len(value) < 127
    return bytes([len(value)]) + value.encode()


def head(path: str, **more: str) -> bytes:
    """The block of a call's head, each field written out."""
    fields = {":method": "POST", ":scheme": "http", ":authority": "localhost", ":path": path, "content-type": "application/grpc", "te": "trailers"}
    fields |= {name.replace("_", "-"): value for name, value in more.items()}
    return b"".join(b"\x00" + text(name) + text(value) for name, value in fields.items())


def message(payload: bytes, flag: int = 0) -> bytes:
    return bytes([flag]) + struct.pack(">I", len(payload)) + payload


class Connection:
    """A connection whose peer is told nothing but what the test sends."""

    def __init__(self, address: str, window: int | None = None, timeout: float = 20):
        host, port = address.rsplit(":", 1)
        self.socket = socket.create_connection((host, int(port)), timeout=timeout)
        settings = b"" if window is None else struct.pack(">HI", 4, window)
        self.send(PREFACE + frame(SETTINGS, 0, 0, settings))
        # The windows of the gateway hold once its settings are acknowledged, and that of the connection once it was told.
        told = set()
        while told < {SETTINGS, WINDOW_UPDATE} and (read := self.read()) is not None:
            if read[0] == SETTINGS and not read[1] & ACK:
                self.send(frame(SETTINGS, ACK, 0))
                told.add(SETTINGS)
            elif read[0] == WINDOW_UPDATE:
                told.add(WINDOW_UPDATE)

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def call(self, stream: int, path: str, data: bytes | None, end: bool = True, **more: str) -> None:
        """Begins a call; without data only its head is sent."""
        self.send(frame(HEADERS, END_HEADERS, stream, head(path, **more)))
        if data is not None:
            self.data(stream, data, end)

    def data(self, stream: int, data: bytes, end: bool = True) -> None:
        pieces = [data[begin : begin + 16384] for begin in range(0, len(data), 16384)] or [b""]
        for piece in pieces[:-1]:
            self.send(frame(DATA, 0, stream, piece))
        self.send(frame(DATA, END_STREAM if end else 0, stream, pieces[-1]))

    def read(self) -> tuple[int, int, int, bytes] | None:
        """The next frame: kind, flags, stream, payload; None when the connection has ended. Asked for a sign of life it gives one."""
        prefix = self.exactly(9)
        if prefix is None:
            return None
        payload = self.exactly(int.from_bytes(prefix[:3], "big"))
        if payload is None:
            return None
        kind, flags = prefix[3], prefix[4]
        if kind == PING and not flags & ACK:
            self.send(frame(PING, ACK, 0, payload))
        return kind, flags, struct.unpack(">I", prefix[5:])[0], payload

    def exactly(self, count: int) -> bytes | None:
        got = b""
        while len(got) < count:
            try:
                piece = self.socket.recv(count - len(got))
            except ConnectionError:
                return None
            if not piece:
                return None
            got += piece
        return got

    def until_end(self) -> list[tuple[int, int, int, bytes]]:
        frames = []
        while (read := self.read()) is not None:
            frames.append(read)
        return frames

    def answer(self, stream: int) -> list[tuple[int, int, int, bytes]]:
        """The frames of a call until it ends, or the connection does."""
        frames = []
        while (read := self.read()) is not None:
            if read[2] == stream:
                frames.append(read)
                if read[0] == RST_STREAM or (read[0] in (HEADERS, DATA) and read[1] & END_STREAM):
                    return frames
        return frames

    def close(self) -> None:
        self.socket.close()
