"""Keeps the accounts: their records, names and places in the store."""
