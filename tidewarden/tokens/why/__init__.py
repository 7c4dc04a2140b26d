"""Explains the state of an account or a provider in sentences."""
