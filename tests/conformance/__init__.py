"""What MongoDB's documents say of change streams, each statement beside the scenario that shows it through feedmux."""
