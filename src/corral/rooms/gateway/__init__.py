"""People and agents over chat channels: who hears what, and what goes where."""
