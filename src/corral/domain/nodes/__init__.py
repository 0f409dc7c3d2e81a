"""Machines that serve a store, and who leads each loop."""
