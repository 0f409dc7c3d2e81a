"""Settings with typed values and scopes, and references to secrets."""
