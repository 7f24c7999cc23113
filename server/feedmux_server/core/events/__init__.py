"""Chunks of events, and checks and renderings of their BSON."""
