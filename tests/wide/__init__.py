"""Views of wide streams beside streams of their own."""
