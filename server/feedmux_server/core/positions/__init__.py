"""Resume tokens, positions, and where a stream starts."""
