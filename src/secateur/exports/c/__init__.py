"""C99 source text."""
