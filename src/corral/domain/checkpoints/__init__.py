"""States of programs that a framework runs step by step, so that they go on where they stopped."""
