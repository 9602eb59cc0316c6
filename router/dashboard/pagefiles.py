"""The page's files, as they were installed: read once, known by name, compressed once.

Only names that were found in the folder lead anywhere, so no path from outside is opened.
"""

from __future__ import annotations

import gzip
import hashlib
from dataclasses import dataclass
from pathlib import Path

from aiohttp import web

_FOLDER = Path(__file__).with_name("static")
_TYPES = {
    ".html": "text/html",
    ".js": "text/javascript",
    ".css": "text/css",
    ".svg": "image/svg+xml",
    ".json": "application/json",
    ".md": "text/markdown",
    ".txt": "text/plain",
}
_LEAST_BYTES = 512
#: what the page may load and who may frame it: itself, nobody
POLICY = (
    "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "object-src 'none'"
)


@dataclass(frozen=True, slots=True)
class PageFile:
    body: bytes
    packed: bytes | None
    content_type: str
    etag: str


class PageFiles:
    """Answers for the page and what it loads."""

    def __init__(self) -> None:
        self._files = {
            path.relative_to(_FOLDER).as_posix(): _read(path)
            for path in sorted(_FOLDER.rglob("*"))
            if path.suffix in _TYPES and path.is_file()
        }

    def answer(self, name: str, request: web.Request) -> web.Response:
        """The file of this name. Raises HTTPNotFound."""
        file = self._files.get(name)
        if file is None:
            raise web.HTTPNotFound
        headers = {
            "Content-Security-Policy": POLICY,
            "ETag": file.etag,
            # Asked again each time, so that a new version is seen at once.
            "Cache-Control": "no-cache",
            "Vary": "Accept-Encoding",
            "Referrer-Policy": "no-referrer",
        }
        if request.headers.get("If-None-Match") == file.etag:
            return web.Response(status=304, headers=headers)
        body = file.body
        if file.packed is not None and "gzip" in request.headers.get("Accept-Encoding", ""):
            headers["Content-Encoding"] = "gzip"
            body = file.packed
        return web.Response(
            body=body, content_type=file.content_type, charset="utf-8", headers=headers
        )


def _read(path: Path) -> PageFile:
    body = path.read_bytes()
    packed = gzip.compress(body, 9, mtime=0) if len(body) >= _LEAST_BYTES else None
    etag = f'"{hashlib.blake2b(body, digest_size=12).hexdigest()}"'
    return PageFile(body, packed, _TYPES[path.suffix], etag)
