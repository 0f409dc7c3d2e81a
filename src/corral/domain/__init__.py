"""The rooms, one concept each: `model.py` words, `sql.py` statements, `ops.py` verbs."""
