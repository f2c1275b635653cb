"""A receiver of traces over OTLP/HTTP."""

import ssl
import threading
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

ERROR = Status.STATUS_CODE_ERROR


@dataclass
class Received:
    """A span, with the service that sent it."""

    service: str
    span: Span

    @property
    def name(self) -> str:
        return self.span.name

    @property
    def trace(self) -> str:
        return self.span.trace_id.hex()

    @property
    def attributes(self) -> dict:
        return values(self.span.attributes)

    @property
    def ms(self) -> float:
        return (self.span.end_time_unix_nano - self.span.start_time_unix_nano) / 1e6


def values(attributes) -> dict:
    """Attributes by key."""
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in attributes}


class Receiver:
    """Listens on a free port of this machine, within TLS if it has a certificate. `status` is its answer to everything."""

    def __init__(self, status: int = 200, tls: ssl.SSLContext | None = None):
        self.status = status
        self.spans: list[Received] = []
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                receiver.take(self)

            def log_message(self, *_) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        if tls:
            self.server.socket = tls.wrap_socket(self.server.socket, server_side=True)
        self.url = f"{'https' if tls else 'http'}://127.0.0.1:{self.server.server_port}"
        self.thread = threading.Thread(target=self.server.serve_forever, daemon=True)

    def __enter__(self) -> "Receiver":
        self.thread.start()
        return self

    def __exit__(self, *_) -> None:
        self.server.shutdown()
        self.server.server_close()

    def take(self, handler: BaseHTTPRequestHandler) -> None:
        body = handler.rfile.read(int(handler.headers["content-length"]))
        if self.status == 200:
            assert handler.path == "/v1/traces", handler.path
            assert handler.headers["content-type"] == "application/x-protobuf"
            for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                service = values(resource.resource.attributes)["service.name"]
                for scope in resource.scope_spans:
                    self.spans += [Received(service, span) for span in scope.spans]
        handler.send_response(self.status)
        handler.send_header("content-length", "0")
        handler.end_headers()

    def roots(self, name: str) -> list[Received]:
        """The spans of this name."""
        return [span for span in self.spans if span.name == name]

    def children(self, of: Received) -> list[Received]:
        """The parts of a span, by time."""
        parts = [
            span
            for span in self.spans
            if span.trace == of.trace and span.span.parent_span_id == of.span.span_id
        ]
        return sorted(parts, key=lambda span: span.span.start_time_unix_nano)
