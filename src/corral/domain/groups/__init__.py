"""Group chats of agents and people, direct messages and broadcasts."""
