"""What a careful newcomer writes: an aiohttp application that passes everything on.

naive_aiohttp.py PORT BACKEND_URL; one process, uvloop, no access log.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Mapping

import aiohttp
import uvloop
from aiohttp import web

HOP_BY_HOP = frozenset(
    ("host", "connection", "keep-alive", "transfer-encoding", "content-length", "te", "trailer")
)
SESSION = web.AppKey("session", aiohttp.ClientSession)
BACKEND = web.AppKey("backend", str)


def end_to_end(headers: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in headers.items() if name.lower() not in HOP_BY_HOP}


async def forward(request: web.Request) -> web.StreamResponse:
    async with request.app[SESSION].request(
        request.method,
        request.app[BACKEND] + request.path_qs,
        data=await request.read(),
        headers=end_to_end(request.headers),
    ) as upstream:
        headers = end_to_end(upstream.headers)
        if upstream.content_type != "text/event-stream":
            body = await upstream.read()
            return web.Response(body=body, status=upstream.status, headers=headers)
        response = web.StreamResponse(status=upstream.status, headers=headers)
        await response.prepare(request)
        async for chunk in upstream.content.iter_any():
            await response.write(chunk)
        await response.write_eof()
        return response


async def session(app: web.Application) -> AsyncIterator[None]:
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0),
        auto_decompress=False,
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=5),
        skip_auto_headers={"User-Agent", "Accept-Encoding"},
    ) as client:
        app[SESSION] = client
        yield


def main() -> None:
    app = web.Application(client_max_size=64 * 2**20)
    app[BACKEND] = sys.argv[2]
    app.cleanup_ctx.append(session)
    app.router.add_route("*", "/{tail:.*}", forward)
    uvloop.install()
    web.run_app(app, host="127.0.0.1", port=int(sys.argv[1]), print=None, access_log=None)


if __name__ == "__main__":
    main()
