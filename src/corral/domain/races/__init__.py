"""Races: several attempts at the same work, round by round; each round continues from a winner."""
