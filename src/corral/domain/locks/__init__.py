"""Locks: leases on paths of a project, and the record of changed files."""
