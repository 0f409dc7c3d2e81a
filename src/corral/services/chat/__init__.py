"""Workflows of chat: inbound events, turns of agents, and delivery."""
