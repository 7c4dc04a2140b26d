"""Answers each path of HTTP: a file for each noun, with its table of routes."""
