"""Tasks: a project's graph of work, and who does what of it."""
