"""Finding words in what was said, printed and noted."""
