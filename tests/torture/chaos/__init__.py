"""Everything at once, and everything that can go wrong: see `main.py`."""
