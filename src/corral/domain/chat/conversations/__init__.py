"""Conversations: sessions that are woken by letters, and their chat turns."""
