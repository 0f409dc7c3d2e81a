"""Processes of agents, supervised from queued to their end."""
