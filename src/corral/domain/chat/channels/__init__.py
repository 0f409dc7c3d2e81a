"""Channels, their places and people, and which agents listen and send where."""
