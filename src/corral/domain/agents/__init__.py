"""Lasting identities of agents, their versions, and the tools that they may use."""
