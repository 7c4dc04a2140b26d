"""Loads Lua scripts into the store and runs them."""
