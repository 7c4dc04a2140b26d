"""Seals tokens at rest, and keeps the keys that seal them."""
