"""Coverage-guided fuzzing of everything that reads bytes which others wrote.

`targets/` holds one module for each reader: what goes in, and what must hold of any input.
`corpus/` is what was found to lead somewhere new, as small as it gets; `regressions/` are the
inputs that broke something once, by name. Both are replayed by `tests/test_fuzz.py` without a
fuzzer. `python -m tests.fuzz` runs them all with one (Atheris); see docs/testing.md.
"""
