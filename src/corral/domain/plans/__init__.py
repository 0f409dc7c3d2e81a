"""Plans and progress: what agents report about their own work."""
