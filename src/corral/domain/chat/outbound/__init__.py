"""Outbound messages: from agents to the platforms."""
