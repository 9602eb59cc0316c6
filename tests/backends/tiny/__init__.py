"""A Qwen3 of half a million parameters, made by us: what it learns, how it is made, its files.

`qwen3/` is the model as vLLM and transformers load it; `gguf.py` writes the same weights for
llama.cpp; `make.py` makes the folder anew and is the only part that needs torch.
"""
