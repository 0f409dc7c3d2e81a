"""The HTTP API. Routes come from the table of operations; `middleware/` checks every request."""
