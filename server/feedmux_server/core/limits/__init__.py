"""Quotas, fairness, memory, leases and forecasts."""
