"""Loops: one per file; a loop decides when, never how. `host.py` runs them together."""
