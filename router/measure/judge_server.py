"""The page with the pairs, served to this machine alone; verdicts are appended to a file."""

from __future__ import annotations

from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock

import msgspec

from router.measure.judging import Judged

_BODY_LIMIT = 4096
_HOST = "127.0.0.1"


class JudgeServer(ThreadingHTTPServer):
    """Serves until `shutdown`. Only what this page sends is taken."""

    daemon_threads = True

    def __init__(self, page: str, run: str, verdicts: Path, *, port: int) -> None:
        super().__init__((_HOST, port), _Handler)
        self.page = page.encode()
        self.run = run
        self.verdicts = verdicts
        self.writing = Lock()

    @property
    def url(self) -> str:
        return f"http://{_HOST}:{self.server_address[1]}/"


class _Handler(BaseHTTPRequestHandler):
    server: JudgeServer

    def do_GET(self) -> None:
        if self.path != "/":
            self.send_error(HTTPStatus.NOT_FOUND)
            return
        self.send_response(HTTPStatus.OK)
        self.send_header("content-type", "text/html; charset=utf-8")
        self.send_header("content-length", str(len(self.server.page)))
        self.end_headers()
        self.wfile.write(self.server.page)

    def do_POST(self) -> None:
        port = self.server.server_address[1]
        if self.headers.get("host") not in (f"{_HOST}:{port}", f"localhost:{port}"):
            self.send_error(HTTPStatus.FORBIDDEN)  # a name that was made to lead here
            return
        # JSON cannot be sent by another site's page without asking first, which we never allow.
        is_json = self.headers.get("content-type") == "application/json"
        length = self.headers.get("content-length", "")
        if self.path != "/verdicts" or not is_json or not length.isdigit():
            self.send_error(HTTPStatus.BAD_REQUEST)
            return
        try:
            judged = msgspec.json.decode(
                self.rfile.read(min(int(length), _BODY_LIMIT)), type=Judged
            )
        except msgspec.DecodeError:
            self.send_error(HTTPStatus.BAD_REQUEST)
            return
        if judged.run != self.server.run:
            self.send_error(HTTPStatus.CONFLICT, "another run's page")
            return
        with self.server.writing, self.server.verdicts.open("ab") as file:
            file.write(msgspec.json.encode(judged) + b"\n")
        self.send_response(HTTPStatus.NO_CONTENT)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: what is judged is nobody's business."""
