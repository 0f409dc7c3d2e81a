"""The tools, one module per concept. `registry.py` lists them."""
