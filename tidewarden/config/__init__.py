"""Reads and checks the configuration: files, settings, providers, secrets."""
