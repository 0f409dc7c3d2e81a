"""Sessions: conversations of agents, their turns, hand-offs, forks and state."""
