"""Databases of other programs: read, and never touched."""
