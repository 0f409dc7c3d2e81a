"""One module per command group; each defines `command`."""
