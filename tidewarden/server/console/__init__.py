"""Serves the web console: its pages, its login, and what its pages ask."""
