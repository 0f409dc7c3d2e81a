"""Leases on paths of a project, the line of those who wait for them, and who touched which file."""
