"""A run's output: redacted, capped, sealed, read and rendered. Knows files, no store."""
