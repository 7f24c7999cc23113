"""Statements of MongoDB's documents on change streams, each with the scenario that shows it through feedmux."""
