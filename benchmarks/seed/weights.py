"""A model of Qwen3-0.6B's published shape with random weights: `python weights.py FROM FOLDER`.

Needs torch and transformers, so it runs in the engine's own Python; nothing is downloaded.
FROM is the folder of the tiny model, whose tokenizer and chat template are taken over.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import torch
import transformers

SHAPE = {
    "vocab_size": 151_936,
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 40_960,
    "tie_word_embeddings": True,
}
_DIRECT = "{{- '<think>\\n\\n</think>\\n\\n' -}}\n"
_OPENED = "{%- else -%}\n{{- '<think>\\n' -}}\n"


def main(tiny: Path, folder: Path) -> None:
    # Made beside and then renamed: a folder that is there is a whole one.
    making = folder.with_name(f"{folder.name}.making")
    shutil.rmtree(making, ignore_errors=True)
    making.mkdir(parents=True)
    shutil.copy(tiny / "tokenizer_config.json", making)
    (making / "tokenizer.json").write_text(_tokenizer(tiny), encoding="utf-8")
    (making / "chat_template.jinja").write_text(_template(tiny), encoding="utf-8")
    _weights(tiny, making)
    making.rename(folder)


def _tokenizer(tiny: Path) -> str:
    """The tiny one, its vocabulary filled up with words that no text is cut into.

    Else most random tokens would be no text, and a stream would say nothing when they come.
    """
    made = json.loads((tiny / "tokenizer.json").read_text(encoding="utf-8"))
    words = made["model"]["vocab"]
    # Named here as well, or the special ones would be counted on behind the new words.
    words.update((token["content"], token["id"]) for token in made["added_tokens"])
    free = set(range(SHAPE["vocab_size"])) - set(words.values())
    words.update((f"Ġw{number}", number) for number in sorted(free))
    return json.dumps(made, ensure_ascii=False)


def _template(tiny: Path) -> str:
    """The tiny one, except that the prompt opens the thought: random weights never would."""
    text = (tiny / "chat_template.jinja").read_text(encoding="utf-8")
    if text.count(_DIRECT) != 1:
        raise SystemExit("the tiny model's template closes thoughts in another way than it did")
    return text.replace(_DIRECT, _DIRECT + _OPENED)


def _weights(tiny: Path, folder: Path) -> None:
    end = json.loads((tiny / "generation_config.json").read_text(encoding="utf-8"))
    shape = transformers.Qwen3Config(
        **SHAPE, bos_token_id=None, eos_token_id=end["eos_token_id"][0], dtype="bfloat16"
    )
    torch.manual_seed(0)
    torch.set_default_dtype(torch.bfloat16)
    model = transformers.Qwen3ForCausalLM(shape)
    model.generation_config = transformers.GenerationConfig(**end)
    model.save_pretrained(folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
