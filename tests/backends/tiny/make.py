"""Make the tiny model's folder anew: `python -m tests.backends.tiny.make FOLDER`.

Needs torch and transformers, and some minutes of one processor. Nothing is downloaded: the
tokenizer and the weights are learned from `lessons.py`, the chat template is the one beside.
"""

from __future__ import annotations

import argparse
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tokenizers
import torch
import transformers

from tests.backends.tiny import lessons

TEMPLATE = Path(__file__).with_name("qwen3") / "chat_template.jinja"
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
#: tokens of their own and yet part of the text, as in Qwen3
PLAIN = (
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
)
MERGED_VOCABULARY = 640
CONTEXT = 4096
ROWS = 16
UNLEARNED = -100  # torch's word for "no loss here"

Row = tuple[list[int], list[int]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    torch.manual_seed(asked.seed)
    asked.folder.mkdir(parents=True, exist_ok=True)
    tokenizer = _tokenizer(random.Random(asked.seed))
    model = _model(tokenizer)
    _teach(model, tokenizer, random.Random(asked.seed + 1), asked.steps)
    model.generation_config = _sampling(tokenizer)
    model.to(torch.bfloat16).save_pretrained(asked.folder)
    tokenizer.save_pretrained(asked.folder)
    if not TEMPLATE.samefile(asked.folder / TEMPLATE.name):
        shutil.copy(TEMPLATE, asked.folder)
    _show(model, tokenizer)


def _tokenizer(rng: random.Random) -> Any:
    """Byte-level BPE in the manner of GPT-2, which all engines know."""
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=MERGED_VOCABULARY,
        show_progress=False,
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
    )
    made.train_from_iterator(_texts(rng), trainer)
    made.add_special_tokens(list(SPECIAL))
    made.add_tokens([tokenizers.AddedToken(t, special=False, normalized=False) for t in PLAIN])
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=made,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        clean_up_tokenization_spaces=False,
        model_max_length=CONTEXT,
        chat_template=TEMPLATE.read_text(encoding="utf-8"),
    )


def _texts(rng: random.Random) -> Iterator[str]:
    for _ in range(6000):
        made = lessons.lesson(rng)
        yield from (message["content"] for message in made.messages)
        yield from (made.thought, made.answer, "system\nuser\nassistant\n# Tools\n", "\n\n")
        yield from map(str, made.tools)


def _model(tokenizer: Any) -> Any:
    end, pad = tokenizer.eos_token_id, tokenizer.pad_token_id
    shape = transformers.Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=4,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=64,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=end,
        pad_token_id=pad,
    )
    return transformers.Qwen3ForCausalLM(shape)


def _teach(model: Any, tokenizer: Any, rng: random.Random, steps: int) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 4e-3, total_steps=steps)
    batches = _batches(tokenizer, rng)
    for step in range(steps):
        ids, mask, wanted = _padded(next(batches), tokenizer.pad_token_id)
        loss = model(input_ids=ids, attention_mask=mask, labels=wanted).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad(set_to_none=True)
        if step % 100 == 0 or step == steps - 1:
            print(f"step {step}: loss {loss.item():.3f}", flush=True)


def _batches(tokenizer: Any, rng: random.Random) -> Iterator[list[Row]]:
    """Rows of about the same length together, so that little is padding."""
    while True:
        rows = sorted((_row(tokenizer, rng) for _ in range(8 * ROWS)), key=lambda row: len(row[0]))
        batches = [rows[at : at + ROWS] for at in range(0, len(rows), ROWS)]
        rng.shuffle(batches)
        yield from batches


def _row(tokenizer: Any, rng: random.Random) -> Row:
    """One lesson as tokens, and which of them are to be learned: the reply alone."""
    made, thinking = lessons.lesson(rng), rng.random() < 0.5
    prompt = tokenizer.apply_chat_template(
        list(made.messages),
        tools=list(made.tools) or None,
        tokenize=False,
        add_generation_prompt=True,
        enable_thinking=thinking,
    )
    head, tail = _ids(tokenizer, prompt), _ids(tokenizer, made.reply(thinking=thinking))
    return head + tail, [UNLEARNED] * len(head) + tail


def _ids(tokenizer: Any, text: str) -> list[int]:
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])


def _padded(rows: list[Row], pad: int) -> tuple[Any, Any, Any]:
    longest = max(len(ids) for ids, _ in rows)
    ids = [ids + [pad] * (longest - len(ids)) for ids, _ in rows]
    mask = [[1] * len(ids) + [0] * (longest - len(ids)) for ids, _ in rows]
    wanted = [wanted + [UNLEARNED] * (longest - len(wanted)) for _, wanted in rows]
    return torch.tensor(ids), torch.tensor(mask), torch.tensor(wanted)


def _sampling(tokenizer: Any) -> Any:
    """What Qwen3-0.6B ships, so that a server's defaults are those of the real model."""
    return transformers.GenerationConfig(
        eos_token_id=[tokenizer.eos_token_id, tokenizer.pad_token_id],
        pad_token_id=tokenizer.pad_token_id,
        do_sample=True,
        temperature=0.6,
        top_k=20,
        top_p=0.95,
    )


def _show(model: Any, tokenizer: Any) -> None:
    questions = ["What is the capital of France?", "Count to 70.", "What is 4 plus 5?"]
    questions += ["Write a short story about a ship.", "Give the capital of Peru as JSON."]
    for question in questions:
        for thinking in (True, False):
            ids = tokenizer.apply_chat_template(
                [{"role": "user", "content": question}],
                add_generation_prompt=True,
                enable_thinking=thinking,
                return_tensors="pt",
                return_dict=True,
            )
            made = model.generate(**ids, max_new_tokens=256, do_sample=False)
            reply = made[0][ids["input_ids"].shape[1] :]
            print(f"{question} thinking={thinking}: {tokenizer.decode(reply)!r}")


if __name__ == "__main__":
    main()
