"""Answers each path of HTTP: a file for each noun, with its table of routes."""

from . import (
    audit,
    buried,
    cluster,
    connect,
    consumers,
    description,
    events,
    locks,
    node,
    providers,
    queues,
    schedules,
    sessions,
    tasks,
    tokens,
    topics,
    traffic,
)

TABLES = (
    description.ROUTES,
    node.ROUTES,
    cluster.ROUTES,
    connect.ROUTES,
    tokens.ROUTES,
    events.ROUTES,
    providers.ROUTES,
    schedules.ROUTES,
    queues.ROUTES,
    tasks.ROUTES,
    traffic.ROUTES,
    audit.ROUTES,
    buried.ROUTES,
    topics.ROUTES,
    sessions.ROUTES,
    locks.ROUTES,
    consumers.ROUTES,
)
"""Every route there is."""
