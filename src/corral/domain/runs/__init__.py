"""Runs: one process of an agent CLI or of any command, from queued to its end."""
