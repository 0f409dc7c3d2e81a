"""Nodes: the machines that serve a store, and the leader election of daemon loops."""
