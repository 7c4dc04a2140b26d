"""Plays an OAuth authorization server for trials and demonstrations."""
