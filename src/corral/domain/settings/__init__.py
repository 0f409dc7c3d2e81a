"""What people chose: typed settings by scope, and references to secrets."""
