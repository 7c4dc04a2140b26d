"""Answers a write only once the store has it as safely as asked."""
