"""A local server of files that can resume, cut connections and refuse: what downloads meet."""

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest


class _Server(ThreadingHTTPServer):
    def __init__(self):
        self.files: dict[str, bytes] = {}
        self.cut_after: int | None = None
        self.resumes = True
        self.requests: list[tuple[str, str]] = []
        super().__init__(("127.0.0.1", 0), _Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/"


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        name, server = self.path.lstrip("/"), self.server
        byte_range = self.headers.get("Range", "")
        server.requests.append((name, byte_range))
        if name not in server.files:
            return self.send_error(404)
        content = server.files[name]
        start = int(byte_range.removeprefix("bytes=").rstrip("-")) if byte_range and server.resumes else 0
        if start and start >= len(content):
            return self.send_error(416)
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        self.wfile.write(content[start : server.cut_after])

    def log_message(self, *_):
        pass


@pytest.fixture
def server():
    with _Server() as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield running
        running.shutdown()
        thread.join()
