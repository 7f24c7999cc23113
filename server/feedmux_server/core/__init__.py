"""Decisions, without I/O, clock or event loop."""
