"""
The doors: RESP and HTTP. They parse and render; what a verb does is decided in the rooms behind.
"""

from .access.users import Users
from .http.server import HttpServer
from .resp.server import RespServer

__all__ = ["HttpServer", "RespServer", "Users"]
