"""The log of bodies: any prompt and any answer come to one line of JSON within the limit."""

from __future__ import annotations

import json

from router import body
from router.body import Spoken
from router.chat import Endpoint
from router.said import Said
from tests.fuzz import source

LIMIT = 256
ENDPOINTS = (Endpoint.CHAT, Endpoint.COMPLETIONS, Endpoint.RESPONSES, Endpoint.OTHER)
BETWEEN = b"\n\n"


def check(data: bytes) -> None:
    """The prompt, an empty line, then documents of the answer, an empty line between them."""
    given = source.of(data)
    prompt, *documents = given.raw.split(BETWEEN)
    said = Said(LIMIT)
    for document in documents:
        if given.has(2):
            said.whole(document)
        else:
            said.frame(document)
    endpoint = ENDPOINTS[given.pick(4)]
    spoken = Spoken(
        ts="2026-11-30T10:00:00.000Z",
        request_id="r",
        endpoint=endpoint,
        scenario=None,
        raw=prompt,
        said=said,
    )
    line = body.line(spoken, LIMIT)
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    told = json.loads(line)
    texts = [message["text"] for message in told["prompt"]]
    assert sum(len(text.encode()) for text in texts) <= LIMIT
    arguments = [call["arguments"] for call in told["tool_calls"]]
    answer = [told["answer"], *told["other_answers"], told["reasoning"], *arguments]
    assert sum(len(text.encode()) for text in answer) <= LIMIT
    assert body.line(spoken, LIMIT) == line, "read twice, told differently"
