"""Seals tokens at rest and manages the keys."""
