"""Authorization servers that none of us wrote, for tests of whole clusters."""

from __future__ import annotations

from support.providers.authorization_servers import authlib, dot, exchanging, oidc, oidc_command

__all__ = ["authlib", "dot", "exchanging", "oidc", "oidc_command"]
