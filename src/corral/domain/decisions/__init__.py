"""Choices that agents record, and that somebody may have to confirm."""
