"""All faults at once, on a whole system: see `main.py`."""
