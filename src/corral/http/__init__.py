"""The HTTP API: routes made from the table of operations, behind one guard."""
