"""Rotates the keys, exports what is sealed, and shows answers that could not be read."""
