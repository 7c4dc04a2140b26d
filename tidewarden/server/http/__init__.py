"""Serves HTTP: its listener, who may ask, what is sent and answered."""
