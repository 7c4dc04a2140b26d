"""Ends queues and topics: those that are dropped, and those that nobody uses any more."""
