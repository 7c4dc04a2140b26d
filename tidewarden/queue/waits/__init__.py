"""Keeps the callers that wait for room or for the ends of tasks, until the node drains."""
