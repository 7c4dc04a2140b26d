"""Authenticates requests with access tokens that a cluster keeps fresh."""

from typing import TYPE_CHECKING, Any

from .account_tokens import AccountTokens

if TYPE_CHECKING:
    from .httpx_auth import TokenAuth

__all__ = ["AccountTokens", "TokenAuth"]


def __getattr__(name: str) -> Any:
    """Import what needs httpx once it is asked for: not every program has that."""
    if name != "TokenAuth":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from .httpx_auth import TokenAuth

    return TokenAuth
