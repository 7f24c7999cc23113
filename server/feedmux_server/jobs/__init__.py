"""Background work of the server: monitors, readiness, expiry, metrics collection."""
