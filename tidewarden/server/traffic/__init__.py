"""Counts who sends what in bounded memory, and shows requests while they pass."""
