"""Races: several attempts at one piece of work at once, round by round, and the winner goes on."""
