"""Builds a node of its parts, starts and stops it, and tells its state."""
