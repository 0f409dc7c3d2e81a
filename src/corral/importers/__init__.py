"""What the databases of other agent tools become here: one mechanism, and a mapping for each tool.

`mapping.py` says what a mapping is, `row.py` judges the values of a row, `things.py` makes rows of
Corral's tables, `taking.py` brings a source in, in one transaction. A tool's own file says what its
tables and columns become, and nothing else; docs/imports.md is written from it.
"""
