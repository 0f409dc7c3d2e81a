"""Imports of conversations and data that other programs recorded."""
