"""Keeps replicated embedded stores: who is primary, who is in sync, and who takes over."""
