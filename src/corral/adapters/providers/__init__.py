"""Agent CLIs: how each is started, resumed and stopped, and what its output says."""
