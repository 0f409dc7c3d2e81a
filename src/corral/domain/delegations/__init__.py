"""Delegations: work handed to an agent, with a result that is sent back."""
