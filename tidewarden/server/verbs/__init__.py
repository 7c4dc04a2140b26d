"""Declares the verbs, and does what each asks."""
