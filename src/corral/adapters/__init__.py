"""Adapters to the outside world. They do not know the domain.

They cover git, processes, sandboxes, providers, channels, output files and secrets.
"""
