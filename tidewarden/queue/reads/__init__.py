"""Reads what queues hold: at the primary, or in the node's own copy where that may answer."""
