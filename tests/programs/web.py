# SPDX-License-Identifier: Apache-2.0
"""A web server on loopback, for downloads."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Web:
    """A server that answers within its block.

    Attributes:
        answers: status, and the body or the location of a redirect, by path; other paths have status 404.
        requested: the paths of GET.
    """

    def __init__(self) -> None:
        self.answers: dict[str, tuple[int, str | bytes]] = {}
        self.requested: list[str] = []
        web = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                web.requested.append(self.path)
                status, body = web.answers.get(self.path, (404, b""))
                self.send_response(status)
                if isinstance(body, str):
                    self.send_header("Location", body)
                self.end_headers()
                self.wfile.write(body if isinstance(body, bytes) else b"")

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self._server.server_port
        self.address = f"http://127.0.0.1:{self.port}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02})

    def __enter__(self) -> Web:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
