"""Workflows of runs: request, dispatch, input, recovery, clean-up and output."""
