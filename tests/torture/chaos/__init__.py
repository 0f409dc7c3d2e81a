"""Fault injection into a whole system, with all kinds of faults: see `main.py`."""
