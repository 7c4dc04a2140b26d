"""Keeps OAuth tokens fresh: accounts, the vault that seals their tokens, and the refreshers."""

from .journal.peer_queries import PATH as PEERS_PATH
from .open_tokens import open_tokens
from .tokens import Tokens
from .verbs.reader import AccountToken

__all__ = ["PEERS_PATH", "AccountToken", "Tokens", "open_tokens"]
