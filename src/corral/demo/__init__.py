"""The story that `make demo` tells."""
