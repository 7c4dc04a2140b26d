"""Keeps the accounts: their records, grants, lists and readers."""
