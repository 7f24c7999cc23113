"""Redis: subscriptions, positions, leases."""
