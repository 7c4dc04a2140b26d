"""
Decides when to refresh, and what becomes of an account when that failed. Pure.

No clock, socket or dice in here: times, verdicts and a random fraction are handed in.
"""
