"""What a client can send wrong, by the words of docs/limits.md: name → bytes.

Each is one request, or what stands in a request's place, to a router that is set up as `usual`,
`tight` or `hasty` says. What comes of it stands in the document, and test_bad_input.py sees to it.
"""

from __future__ import annotations

import gzip
import json
import os
import zlib
from collections.abc import Mapping
from typing import Any

from tests.support.rawclient import chunked, request_bytes

CHAT = "/v1/chat/completions"
ASK: Mapping[str, Any] = {
    "model": "auto",
    "messages": [{"role": "user", "content": "Name a river."}],
}
BODY = json.dumps(ASK).encode()
LENGTH = f"Content-Length: {len(BODY)}"
CHUNKED = "Transfer-Encoding: chunked"
KEY = {"Authorization": "Bearer key-of-alice"}
START = f"POST {CHAT} HTTP/1.1"

#: limits low enough to be met by a test in no time
TIGHT: Mapping[str, Any] = {
    "body_limit_mb": 1,
    "inflate_ratio": 2,
    "json_depth": 20,
    "messages": 10,
    "header_line_kb": 16,
    "allow_policy_off": False,
}


def spelled(*lines: str, start: str = START, body: bytes = BODY) -> bytes:
    """A request of just these lines; Latin-1, so that any byte can be said."""
    return "\r\n".join([start, *lines, "", ""]).encode("latin-1") + body


def post(body: Any, headers: Mapping[str, str] | None = None, path: str = CHAT) -> bytes:
    given = dict(headers or {})
    if body == b"" and not given:
        given["Content-Length"] = "0"
    return request_bytes("POST", path, given, body)


def with_body(body: bytes) -> bytes:
    """Of chunks as they are spelled here."""
    return spelled("Host: a", CHUNKED, body=body)


def nested(depth: int) -> bytes:
    return b'{"model":"auto","messages":[],"x":' + b"[" * depth + b"]" * depth + b"}"


#: HTTP that is none, or that two readers might read as two different things
HTTP: Mapping[str, bytes] = {
    "`Content-Length` and `Transfer-Encoding`": spelled("Host: a", LENGTH, CHUNKED),
    "`Transfer-Encoding` and `Content-Length`": spelled("Host: a", CHUNKED, LENGTH),
    "two lengths": spelled("Host: a", LENGTH, "Content-Length: 0"),
    "one length twice": spelled("Host: a", LENGTH, LENGTH),
    "a list of lengths": spelled("Host: a", f"{LENGTH}, {len(BODY)}"),
    "a length with a sign": spelled("Host: a", f"Content-Length: +{len(BODY)}"),
    "a hexadecimal length": spelled("Host: a", f"Content-Length: 0x{len(BODY):x}"),
    "a negative length": spelled("Host: a", "Content-Length: -1"),
    "a length with a space in it": spelled("Host: a", "Content-Length: 1 0"),
    "no digits for a length": spelled("Host: a", "Content-Length: "),
    "a length beyond 64 bits": spelled("Host: a", "Content-Length: " + "9" * 30),
    "an unknown transfer coding": spelled("Host: a", "Transfer-Encoding: xchunked"),
    "compressed chunks": spelled("Host: a", "Transfer-Encoding: gzip, chunked"),
    "chunks inside another coding": spelled("Host: a", "Transfer-Encoding: chunked, identity"),
    "chunks in chunks": spelled("Host: a", "Transfer-Encoding: chunked, chunked"),
    "chunks with a parameter": spelled("Host: a", "Transfer-Encoding: chunked;q=1"),
    "two `Transfer-Encoding` lines": spelled("Host: a", CHUNKED, "Transfer-Encoding: identity"),
    "the same `Transfer-Encoding` twice": spelled("Host: a", CHUNKED, CHUNKED),
    "the transfer coding `identity`": spelled("Host: a", "Transfer-Encoding: identity"),
    "an empty transfer coding": spelled("Host: a", "Transfer-Encoding: "),
    "a transfer coding behind a vertical tab": spelled("Host: a", "Transfer-Encoding: \x0bchunked"),
    "chunks in HTTP/1.0": spelled(CHUNKED, start=f"POST {CHAT} HTTP/1.0", body=chunked(BODY)),
    "a space before the colon": spelled("Host: a", "Transfer-Encoding : chunked", LENGTH),
    "a folded line": spelled("Host: a", "Transfer-Encoding:", " chunked", LENGTH),
    "a space before the first header": spelled(" Host: a", LENGTH),
    "a line feed alone ends a header": spelled("Host: a", f"X-A: b\n{LENGTH}\n{CHUNKED}"),
    "a line feed alone ends the first line": spelled(LENGTH, start=f"{START}\nHost: a"),
    "a carriage return inside a line": spelled("Host: a", f"X-A: b\r{CHUNKED}", LENGTH),
    "NUL in a value": spelled("Host: a", "X-A: b\0c", LENGTH),
    "NUL in a name": spelled("Host: a", "X\0A: b", LENGTH),
    "a control character in a value": spelled("Host: a", "X-A: b\x01c", LENGTH),
    "a space in a name": spelled("Host: a", "X A: b", LENGTH),
    "a letter beyond ASCII in a name": spelled("Host: a", "X-\xc4: b", LENGTH),
    "a header without a name": spelled("Host: a", ": b", LENGTH),
    "a line without a colon": spelled("Host: a", "nonsense", LENGTH),
    "no `Host`": spelled(LENGTH),
    "two `Host` lines": spelled("Host: a", "Host: b", LENGTH),
    "a `Host` with a path": spelled("Host: a/b", LENGTH),
    "a `Host` with a user": spelled("Host: root@a", LENGTH),
    "two hosts in one `Host`": spelled("Host: a, b", LENGTH),
    "a user in an absolute target": spelled(
        "Host: a", LENGTH, start=f"POST http://root@a{CHAT} HTTP/1.1"
    ),
    "a target of another scheme": spelled("Host: a", LENGTH, start=f"POST ftp://a{CHAT} HTTP/1.1"),
    "a target without a slash": spelled("Host: a", LENGTH, start="POST v1 HTTP/1.1"),
    "`*` with another method than OPTIONS": spelled("Host: a", LENGTH, start="POST * HTTP/1.1"),
    "a space in the target": spelled("Host: a", LENGTH, start=f"POST {CHAT} x HTTP/1.1"),
    "a control character in the target": spelled(
        "Host: a", LENGTH, start=f"POST {CHAT}\x01 HTTP/1.1"
    ),
    "no target": spelled("Host: a", LENGTH, start="POST HTTP/1.1"),
    "HTTP/0.9": b"GET /version\r\n\r\n",
    "HTTP/1.2": spelled("Host: a", LENGTH, start=f"POST {CHAT} HTTP/1.2"),
    "HTTP/2.0 in words": spelled("Host: a", LENGTH, start=f"POST {CHAT} HTTP/2.0"),
    "the preface of HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "the version in small letters": spelled("Host: a", LENGTH, start=f"POST {CHAT} http/1.1"),
    "the method in small letters": spelled("Host: a", LENGTH, start=f"post {CHAT} HTTP/1.1"),
    "an unknown method": spelled("Host: a", LENGTH, start=f"FETCH {CHAT} HTTP/1.1"),
    "CONNECT": b"CONNECT a:443 HTTP/1.1\r\nHost: a:443\r\n\r\n",
    "no HTTP at all": b"hello\r\n\r\n",
    "a TLS hello": bytes.fromhex("16030100a5010000a10303") + b"\0" * 64,
    "a SOCKS hello": b"\x05\x01\x00",
    "a line of the PROXY protocol": b"PROXY TCP4 10.0.0.1 10.0.0.2 1 2\r\n" + post(ASK),
    "no number for a chunk's size": with_body(b"zz\r\n{}\r\n0\r\n\r\n"),
    "an empty line for a chunk's size": with_body(b"\r\n{}\r\n0\r\n\r\n"),
    "a chunk's size with a sign": with_body(b"+2\r\n{}\r\n0\r\n\r\n"),
    "a chunk's size in C": with_body(b"0x2\r\n{}\r\n0\r\n\r\n"),
    "a chunk's size beyond 64 bits": with_body(b"1" + b"0" * 16 + b"2\r\n{}\r\n0\r\n\r\n"),
    "a line feed alone behind a chunk's size": with_body(b"2\n{}\r\n0\r\n\r\n"),
    "a chunk longer than its size": with_body(b"2\r\n{}{}\r\n0\r\n\r\n"),
    "a line feed alone behind a chunk": with_body(b"2\r\n{}\n0\r\n\r\n"),
    "a trailer without a colon": with_body(chunked(BODY)[:-2] + b"nonsense\r\n\r\n"),
}

#: too much of something, for a router with the limits that it is shipped with
USUAL: Mapping[str, bytes] = {
    "a body that is announced as over 32 MiB": post(b"", {"Content-Length": str((32 << 20) + 1)}),
    "chunks that add up to over 32 MiB": post(
        chunked(*[b" " * (1 << 20)] * 33), {"Transfer-Encoding": "chunked"}
    ),
    "4 MiB that a small gzip body unpacks to": post(
        gzip.compress(b" " * (4 << 20)), {"Content-Encoding": "gzip"}
    ),
    "chunk extensions without end": with_body((b"1;" + b"a" * 8000 + b"\r\n{\r\n") * 300),
    "a trailer without end": with_body(b"0\r\nx: " + b"a" * (4 << 20)),
    "a head over 64 KiB": post(ASK, {f"X-{n}": "a" * 1000 for n in range(70)}),
    "a head that does not end": START.encode() + b"\r\nX: " + b"a" * (70 << 10),
    "101 header lines": post(ASK, {f"X-{n}": "a" for n in range(99)}),
    "a target over 8 KiB": post(ASK, path=CHAT + "?" + "a" * 8192),
    "8193 messages": post({"model": "auto", "messages": [{"role": "user", "content": ""}] * 8193}),
    "100 000 brackets": post(nested(100_000)),
    "a coding that is not known": post(ASK, {"Content-Encoding": "br"}),
    "gzip that is cut off": post(gzip.compress(BODY)[:-9], {"Content-Encoding": "gzip"}),
    "gzip with something behind it": post(
        gzip.compress(BODY) + gzip.compress(BODY), {"Content-Encoding": "gzip"}
    ),
    "gzip that is none": post(BODY, {"Content-Encoding": "gzip"}),
    "bare deflate that is cut off": post(
        zlib.compress(BODY, wbits=-15)[:-3], {"Content-Encoding": "deflate"}
    ),
    "no JSON": post(b"<xml/>"),
    "no body": post(b""),
    "JSON that is cut off": post(BODY[:-4]),
    "a list for a body": post(b"[]"),
    "a body with a name twice": post(b'{"model":"auto","model":"x","messages":[]}'),
    "text that is not UTF-8": post(b'{"messages":[{"role":"user","content":"\xff"}]}'),
    "`NaN` for a number": post(b'{"messages":[],"temperature":NaN}'),
    "no messages": post({"model": "auto"}),
    "an empty list of messages": post({"model": "auto", "messages": []}),
    "a message that is none": post({"messages": ["hi"]}),
    "`stream` as a number": post({**ASK, "stream": 1}),
    "an unknown model": post({**ASK, "model": "gpt-4o"}),
    "an unknown path": request_bytes("POST", "/v1/nothing"),
    "GET where POST is meant": request_bytes("GET", CHAT),
    "TRACE": request_bytes("TRACE", CHAT),
    "OPTIONS for another origin": request_bytes("OPTIONS", CHAT, {"Origin": "https://a.example"}),
}

#: the same for a router with the limits of `TIGHT`, and with keys
STRICT: Mapping[str, bytes] = {
    "a gzip body that unpacks to over `body_limit_mb`": post(
        gzip.compress(os.urandom(600 << 10).hex().encode(), 1), {**KEY, "Content-Encoding": "gzip"}
    ),
    "a header line over `header_line_kb`": post(ASK, {**KEY, "X-Long": "a" * (16 << 10)}),
    "a body deeper than `json_depth`": post(nested(20), KEY),
    "no key where keys are asked for": post(ASK),
    "an unknown key": post(ASK, {"Authorization": "Bearer key-of-mallory"}),
    "`x-router-policy: off` where that is not allowed": post(
        ASK, {**KEY, "x-router-policy": "off"}
    ),
}
