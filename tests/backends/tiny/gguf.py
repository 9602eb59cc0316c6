"""The tiny model as llama.cpp loads it: the folder's weights and tokenizer in one GGUF file.

Bytes in, bytes out, with no library: matrices keep their bfloat16, so that every engine
computes with the very same numbers, and the few vectors become float32 as llama.cpp wants.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

ALIGNMENT = 32
# GGUF's numbers for the types of a setting, of a tensor and of a token.
_U32, _I32, _F32, _BOOL, _STRING, _ARRAY = 4, 5, 6, 7, 8, 9
_TENSOR_F32, _TENSOR_BF16 = 0, 30
_NORMAL, _CONTROL, _USER_DEFINED = 1, 3, 4

_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


class Tensor(NamedTuple):
    name: str
    shape: tuple[int, ...]
    kind: int
    data: bytes


def write(folder: Path, file: Path) -> Path:
    """The model in `folder` as `file`, which is returned."""
    file.write_bytes(document([*_settings(folder)], [*_tensors(folder / "model.safetensors")]))
    return file


def document(settings: list[bytes], tensors: list[Tensor]) -> bytes:
    """A whole GGUF file, version 3."""
    infos, data = b"", b""
    for tensor in tensors:
        dimensions = tensor.shape[::-1]  # the fastest first
        infos += _text(tensor.name) + struct.pack("<I", len(dimensions))
        infos += struct.pack(f"<{len(dimensions)}QIQ", *dimensions, tensor.kind, len(data))
        data += _aligned(tensor.data)
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(settings))
    return _aligned(head + b"".join(settings) + infos) + data


def _settings(folder: Path) -> Iterator[bytes]:
    shape = _json(folder / "config.json")
    rope = shape.get("rope_parameters") or shape
    yield _setting("general.architecture", _STRING, "qwen3")
    yield _setting("general.name", _STRING, "tiny-qwen3")
    for name, value in {
        "block_count": shape["num_hidden_layers"],
        "context_length": shape["max_position_embeddings"],
        "embedding_length": shape["hidden_size"],
        "feed_forward_length": shape["intermediate_size"],
        "attention.head_count": shape["num_attention_heads"],
        "attention.head_count_kv": shape["num_key_value_heads"],
        "attention.key_length": shape["head_dim"],
        "attention.value_length": shape["head_dim"],
    }.items():
        yield _setting(f"qwen3.{name}", _U32, value)
    yield _setting("qwen3.attention.layer_norm_rms_epsilon", _F32, shape["rms_norm_eps"])
    yield _setting("qwen3.rope.freq_base", _F32, rope["rope_theta"])
    yield from _tokenizer(_json(folder / "tokenizer.json"))
    template = (folder / "chat_template.jinja").read_text(encoding="utf-8")
    yield _setting("tokenizer.chat_template", _STRING, template)


def _tokenizer(written: Mapping[str, Any]) -> Iterator[bytes]:
    tokens = {number: (text, _NORMAL) for text, number in written["model"]["vocab"].items()}
    for added in written["added_tokens"]:
        kind = _CONTROL if added["special"] else _USER_DEFINED
        tokens[added["id"]] = (added["content"], kind)
    in_order = [tokens[number] for number in range(len(tokens))]
    numbers = {text: number for number, (text, _) in tokens.items()}
    yield _setting("tokenizer.ggml.model", _STRING, "gpt2")
    yield _setting("tokenizer.ggml.pre", _STRING, "gpt-2")
    yield _list("tokenizer.ggml.tokens", _STRING, [text for text, _ in in_order])
    yield _list("tokenizer.ggml.token_type", _I32, [kind for _, kind in in_order])
    yield _list("tokenizer.ggml.merges", _STRING, [" ".join(m) for m in written["model"]["merges"]])
    yield _setting("tokenizer.ggml.eos_token_id", _U32, numbers["<|im_end|>"])
    yield _setting("tokenizer.ggml.padding_token_id", _U32, numbers["<|endoftext|>"])
    yield _setting("tokenizer.ggml.add_bos_token", _BOOL, False)


def _tensors(file: Path) -> Iterator[Tensor]:
    """The weights of a safetensors file, which is a length, a JSON head and the bytes."""
    whole = file.read_bytes()
    (length,) = struct.unpack_from("<Q", whole)
    head, body = json.loads(whole[8 : 8 + length]), whole[8 + length :]
    for name, found in head.items():
        if name == "__metadata__":
            continue
        assert found["dtype"] == "BF16", f"{name} is {found['dtype']}"
        start, end = found["data_offsets"]
        shape, data = tuple(found["shape"]), body[start:end]
        if len(shape) > 1:
            yield Tensor(_renamed(name), shape, _TENSOR_BF16, data)
        else:
            yield Tensor(_renamed(name), shape, _TENSOR_F32, _widened(data))


def _renamed(name: str) -> str:
    part = name.removesuffix(".weight")
    if (layer := re.match(r"model\.layers\.(\d+)\.(.+)", part)) is not None:
        return f"blk.{layer[1]}.{_NAMES[layer[2]]}.weight"
    return f"{_NAMES[part]}.weight"


def _widened(data: bytes) -> bytes:
    """bfloat16 as float32: the same number with two more bytes, both zero."""
    return b"".join(b"\0\0" + data[at : at + 2] for at in range(0, len(data), 2))


def _setting(key: str, kind: int, value: Any) -> bytes:
    return _text(key) + struct.pack("<I", kind) + _value(kind, value)


def _list(key: str, kind: int, values: list[Any]) -> bytes:
    head = _text(key) + struct.pack("<IIQ", _ARRAY, kind, len(values))
    return head + b"".join(_value(kind, value) for value in values)


def _value(kind: int, value: Any) -> bytes:
    if kind == _STRING:
        return _text(value)
    return struct.pack({_U32: "<I", _I32: "<i", _F32: "<f", _BOOL: "<?"}[kind], value)


def _text(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def _aligned(data: bytes) -> bytes:
    return data + bytes(-len(data) % ALIGNMENT)


def _json(file: Path) -> Any:
    return json.loads(file.read_text(encoding="utf-8"))
