"""Declares the verbs, and answers each."""
