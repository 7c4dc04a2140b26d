"""
Limits of what nodes may send for one provider's client.

Many answers together show whose fault a failure is.
"""
