"""
Limits what a provider's client sends, by what all its accounts are answered.

Many answers together show whose fault a failure is.
"""
