"""Workflows of races: preparation, checks, judging, winners and clean-up of worktrees."""
