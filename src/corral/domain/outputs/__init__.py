"""Outputs and logs of runs: where they are stored, and how large they are."""
