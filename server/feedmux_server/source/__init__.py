"""MongoDB: cursors, readers, checks, errors."""
