"""Serves HTTP: tokens, schedules, events, metrics."""
