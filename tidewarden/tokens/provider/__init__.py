"""Speaks to a provider's token endpoint and classifies its answers."""
