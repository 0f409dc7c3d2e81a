"""Full-text search over turns, outputs and notes."""
