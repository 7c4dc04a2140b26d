"""Decides who may connect, and who may do what."""
