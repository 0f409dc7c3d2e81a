"""Agents in boxes: sandboxes without network, spoken to by the two files of their session."""
