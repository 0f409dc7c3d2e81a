"""Read-only access to databases of other programs, which are untrusted."""
