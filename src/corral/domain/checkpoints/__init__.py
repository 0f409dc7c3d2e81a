"""Checkpoints: saved states of agent frameworks, so that a program can resume."""
