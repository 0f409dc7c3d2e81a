"""Conversations that Corral did not start, from the records of the agents themselves."""
