"""Speaks to the primaries of a Redis Cluster as to one store."""
