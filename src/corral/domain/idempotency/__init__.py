"""Answers that were given to calls with a key, so that a repeated call does nothing twice."""
