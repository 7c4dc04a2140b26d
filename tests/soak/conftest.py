"""Servers outside, for tests of long runs: authorization servers that none of us wrote, and one."""

from __future__ import annotations

from support.cluster.daily_work import outside
from support.providers.authorization_servers import authlib, dot, exchanging, oidc, oidc_command

__all__ = ["authlib", "dot", "exchanging", "oidc", "oidc_command", "outside"]
