"""Accounts, the vault that seals their tokens, and the refreshers that keep them fresh."""

from .accounts.reader import AccountToken
from .journal.peer_queries import PATH as PEERS_PATH
from .tokens import Tokens

__all__ = ["PEERS_PATH", "AccountToken", "Tokens"]
