"""Authenticates requests with access tokens that a cluster keeps fresh."""

from .account_tokens import AccountTokens
from .httpx_auth import TokenAuth

__all__ = ["AccountTokens", "TokenAuth"]
