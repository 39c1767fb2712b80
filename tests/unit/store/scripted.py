"""An HTTP server that answers as a test tells it to, and keeps what it was asked."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass(frozen=True)
class Answer:
    """`short`: that many bytes of the body are held back and the connection is closed; `silent`:
    the connection is closed without an answer. Unless `sized`, the end of the body is that of the
    connection.
    """

    status: int = 200
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    short: int = 0
    silent: bool = False
    sized: bool = True


def s3_error(code: str, status: int, message: str = "as scripted") -> Answer:
    xml = f"<Error><Code>{code}</Code><Message>{message}</Message></Error>"
    return Answer(status=status, body=xml.encode(), headers={"Content-Type": "application/xml"})


@dataclass(frozen=True)
class Asked:
    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes


@dataclass
class Scripted:
    endpoint: str
    asked: list[Asked]
    answers: list[Answer]
    connections: set[int]

    def reset(self) -> None:
        self.asked.clear()
        self.answers.clear()
        self.connections.clear()


@contextmanager
def scripted_server() -> Iterator[Scripted]:
    script = Scripted("", [], [], set())

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = -1  # an answer is one packet

        def _answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            script.asked.append(Asked(self.command, self.path, dict(self.headers), body))
            script.connections.add(self.client_address[1])
            answer = script.answers.pop(0) if script.answers else Answer()
            if answer.silent:
                self.close_connection = True
                return
            self.send_response(answer.status)
            for name, value in answer.headers.items():
                self.send_header(name, value)
            if answer.sized:
                self.send_header("Content-Length", str(len(answer.body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(answer.body[: len(answer.body) - answer.short])
            if answer.short or not answer.sized:
                self.close_connection = True

        do_GET = do_PUT = do_POST = do_HEAD = _answer  # noqa: N815 - named by the base class

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    script.endpoint = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield script
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
