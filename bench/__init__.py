"""The benchmark: every hot path as a ratio to the raw driver and to comparable libraries.

`make bench`, `make bench-peers`, or `python -m bench [--quick] [CASE …]`. Results go to
`bench/results.json` and, as text and plots, to `docs/explanation/performance.md`. Where Corral is
slower than a peer, the row gives the reason. The node programs are in `bench/node`.
"""
