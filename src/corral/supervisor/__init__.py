"""The small process that keeps one run: it starts the agent, watches it and says how it ended."""
