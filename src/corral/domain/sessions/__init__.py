"""Conversations of agents: turns in order, hand-offs, forks, and what is remembered."""
