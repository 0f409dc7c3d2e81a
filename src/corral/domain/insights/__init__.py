"""Read-only questions across rooms; each is a function of an open transaction."""
