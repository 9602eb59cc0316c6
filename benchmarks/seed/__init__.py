"""What presets, warm-up, prefix reuse and batching give on a real engine, as ratios in one run.

`make bench-seed`; docs/figures.md says what the figures mean and what they do not.
"""
