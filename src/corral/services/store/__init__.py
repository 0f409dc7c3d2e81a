"""Workflows of the store itself: checks, backup, move, export and retention."""
