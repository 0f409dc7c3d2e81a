"""Faces of the library: each parses, calls one operation and shows the result."""
