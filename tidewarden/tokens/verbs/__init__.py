"""Serves the verbs of tokens: a grant is put, a token read, accounts listed and counted."""
