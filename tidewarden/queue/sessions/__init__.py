"""Keeps the sessions of consumers, and releases what they leave behind."""
