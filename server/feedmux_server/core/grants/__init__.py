"""Grants, compiled into stages before a feed's pipeline."""
