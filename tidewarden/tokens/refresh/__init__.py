"""Refreshes the tokens that come due, each once."""
