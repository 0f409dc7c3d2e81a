"""Decisions that agents record, and that people may have to confirm."""
