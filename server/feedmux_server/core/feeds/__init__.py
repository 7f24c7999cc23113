"""Feeds, their keys, and the checks of their pipelines."""
