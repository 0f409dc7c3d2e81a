"""Chats of agents and people: groups, direct messages, broadcasts."""
