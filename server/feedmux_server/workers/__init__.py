"""Separate processes for work that would block the event loop."""
