"""The domain: one package per concept.

`model.py` holds the types, states and transition tables, `sql.py` the statements as text, `ops.py`
the verbs. Each verb is a function of an open transaction.
"""
