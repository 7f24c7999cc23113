"""Identities, grants and quotas of the tenants."""
