"""What is to be learned from a policy: all that the weights depend on, as one message.

In: a policy. Out: a task, and its digest, by which weights are kept. And back again, in the
process that fits. Knows no numpy.
"""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

import msgspec

from router import policy as policies
from router import tomlfile
from router.classify.weights import Weights
from router.policy import Policy, PolicyFile

#: code whose change would give other weights for the same examples
_CODE = (
    "fit.py",
    "chat.py",
    *(
        f"classify/{name}.py"
        for name in ("features", "grams", "han", "learned", "weights", "words")
    ),
)


class Answer(msgspec.Struct):
    """What the process that fits has to say."""

    weights: Weights | None = None
    known_as: str = ""  # the digest of the same task with all files read
    faulty: str = ""  # the file that is wrong, and how
    mistakes: list[tuple[str, int | None, str]] = []


def has_examples(policy: Policy) -> bool:
    """Whether there may be anything to learn from."""
    return bool(policy.file.examples or policy.unread) or any(
        scenario.match.examples for scenario in policy.scenarios.values()
    )


def digest(policy: Policy) -> str:
    """Names what is to be learned, and the code that learns it."""
    found = hashlib.sha256(_code_digest().encode())
    found.update(_written(policy))
    for _, data in policy.unread:
        found.update(data)
    return found.hexdigest()[:24]


def task(policy: Policy) -> bytes:
    """Examples and matchers as JSON; raises FileFault. Files not yet read go along as text."""
    unread = [(name, tomlfile.decoded(data, name)) for name, data in policy.unread]
    return msgspec.json.encode({"unread": unread, "policy": msgspec.Raw(_written(policy))})


def _written(policy: Policy) -> bytes:
    file = policy.file
    return msgspec.json.encode(
        {
            "schema": policies.SCHEMA,
            "default_scenario": next(iter(file.scenarios)),  # it makes no difference here
            "classify": file.classify.model_dump(),
            "thinking": file.thinking.model_dump(),
            "examples": {name: entry.model_dump() for name, entry in file.examples.items()},
            "conversation": file.conversation.model_dump(),
            "scenarios": {
                name: {
                    "match": {
                        "keywords": scenario.match.keywords,
                        "patterns": scenario.match.patterns,
                        "examples": scenario.match.examples,
                    }
                }
                for name, scenario in file.scenarios.items()
            },
        }
    )


def policy_of(given: bytes) -> Policy:
    """The policy to learn from; raises FileFault for a file with examples that is wrong."""
    message = msgspec.json.decode(given)
    written = PolicyFile.model_validate(message["policy"])
    for name, text in message["unread"]:
        written = policies.with_examples(written, text.encode(), name)
    return policies.of(written)


@cache
def _code_digest() -> str:
    found = hashlib.sha256()
    for name in _CODE:
        found.update((Path(__file__).parent / name).read_bytes())
    return found.hexdigest()
