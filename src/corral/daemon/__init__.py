"""Loops: one per file; a loop decides when, never how."""
