"""Figures beside those of peers, measured in the same run. Nothing here asserts anything."""
