"""Inbound messages: from an event of a platform to the sessions of agents."""
