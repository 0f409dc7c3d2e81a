"""Agents: named identities, their versions, and the tools that they may use."""
