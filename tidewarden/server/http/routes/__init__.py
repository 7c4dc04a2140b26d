"""Answers each path of HTTP: a file for each noun, with its table of routes."""

from . import audit, description, events, node, queues, schedules, tasks, tokens, traffic

TABLES = (
    description.ROUTES,
    node.ROUTES,
    tokens.ROUTES,
    events.ROUTES,
    schedules.ROUTES,
    queues.ROUTES,
    tasks.ROUTES,
    traffic.ROUTES,
    audit.ROUTES,
)
"""Every route there is."""
