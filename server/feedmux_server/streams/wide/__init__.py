"""Reads several collections at once, for many feeds."""
