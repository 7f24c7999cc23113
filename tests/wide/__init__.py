"""Compare views of wide streams with separate streams."""
