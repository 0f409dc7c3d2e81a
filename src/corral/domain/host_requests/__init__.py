"""Requests of agents to the host: actions and secrets that need an approval."""
