"""The append-only record of all changes, and the feed that never skips one."""
