"""
Providers that behave as real ones do, each a script of its own, and what becomes of a fleet under
them.
"""
