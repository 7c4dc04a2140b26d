"""Runs the store's server as a child of this node."""
