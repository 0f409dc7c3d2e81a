"""Workflows of the chat gateway: inbound events, turns of agents, and delivery."""
