"""Journals each answer of a provider on disk before the store has it."""
