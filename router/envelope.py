"""The few members of a request that deciding needs, as msgspec reads them.

The decoders take JSON and raise msgspec.DecodeError; a content stays undecoded.
"""

from __future__ import annotations

import msgspec


class Message(msgspec.Struct, gc=False):
    role: str
    content: msgspec.Raw = msgspec.Raw(b"null")


class Item(msgspec.Struct, gc=False):
    """A `/v1/responses` input item: a message, or something without a role."""

    role: str | None = None
    content: msgspec.Raw = msgspec.Raw(b"null")
    type: str | None = None


class Part(msgspec.Struct, gc=False):
    type: str = ""
    text: str | None = None


class Named(msgspec.Struct):
    """A body of which nothing but the model is asked."""

    model: str | None = None


messages_in = msgspec.json.Decoder(list[Message]).decode
items_in = msgspec.json.Decoder(list[Item]).decode
parts_in = msgspec.json.Decoder(list[Part]).decode
text_in = msgspec.json.Decoder(str).decode
value_in = msgspec.json.Decoder().decode
named_in = msgspec.json.Decoder(Named).decode
