"""Events: the append-only log of all changes, and a feed that never skips one."""
