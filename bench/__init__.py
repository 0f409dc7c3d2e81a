"""The bench: every hot path as a ratio, against the raw driver and against what people use instead.

`make bench`, or `python -m bench [--quick] [CASE …]`. Results go to `bench/results.json` and, in
words, to `docs/performance.md`.
"""
