"""Telling people and programs of what happens to runs, once for each edge."""
