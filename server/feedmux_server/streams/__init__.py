"""Reads MongoDB for all subscribers of a feed."""
