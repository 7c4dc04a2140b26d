"""Seals the tokens of an account's row, each for its place."""

from __future__ import annotations

from tidewarden.tokens.vault.vault import Place, Vault


def seal_pair(
    vault: Vault, provider: str, account: str, at: tuple[int, int], access_token: str, brought: str
) -> tuple[bytes, bytes]:
    """
    Seal the access token, and the text that the account brings to its next refresh.

    ``at``: grant and generation of their row. An access token that is not there stays empty.
    """
    access = b""
    if access_token:
        access = vault.seal(access_token.encode(), Place(provider, account, "access", *at))
    return access, vault.seal(brought.encode(), Place(provider, account, "refresh", *at))
