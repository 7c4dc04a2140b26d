"""Accounts, the vault that seals their tokens, and the refreshers that keep them fresh."""

from tidewarden.tokens.peers import PATH as PEERS_PATH
from tidewarden.tokens.reader import Token
from tidewarden.tokens.tokens import Tokens

__all__ = ["PEERS_PATH", "Token", "Tokens"]
