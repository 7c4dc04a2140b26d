"""Serves RESP and HTTP: parses, checks permissions and renders; other rooms do what a verb asks."""

from .access.users import Users
from .http.server import HttpServer
from .resp.server import RespServer

__all__ = ["HttpServer", "RespServer", "Users"]
