"""Fleets under scripted providers that behave as real ones do, each a scenario of its own."""
