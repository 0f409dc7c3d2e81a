"""The bench: every hot path as a ratio, against the raw driver and against what people use instead.

`make bench`, `make bench-peers`, or `python -m bench [--quick] [CASE …]`. Results go to
`bench/results.json` and, in words and plots, to `docs/explanation/performance.md`. Where Corral is
not ahead of a peer, the row says why. What runs in node is in `bench/node`.
"""
