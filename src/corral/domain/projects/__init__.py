"""Directories that agents work in."""
