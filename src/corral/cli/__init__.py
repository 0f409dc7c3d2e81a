"""The command line: one module per command group in `commands`, imported on demand."""
