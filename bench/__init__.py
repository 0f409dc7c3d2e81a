"""Benchmarks: frequent operations as ratios, beside the raw driver and beside other tools.

`make bench`, `make bench-peers`, or `python -m bench [--quick] [CASE …]`. Results go to
`bench/results.json`, and as tables and plots to `bench/RESULTS.md` and `docs/pictures`;
`docs/explanation/performance.md` summarises them. Where Corral is slower than a peer, the row gives
the reason. Programs that run in node are in `bench/node`.
"""
