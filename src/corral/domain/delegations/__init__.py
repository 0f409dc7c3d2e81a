"""Delegations: work handed from one to another, and the result that comes back."""
