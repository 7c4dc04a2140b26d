"""Registrations of nodes."""

from __future__ import annotations

from support.cluster.registrations import nodes

__all__ = ["nodes"]
