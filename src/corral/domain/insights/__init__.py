"""Read-only reports over several concepts, and integrity checks."""
