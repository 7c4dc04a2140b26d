"""The doors: RESP and HTTP. They parse and render; what a verb does is decided in the rooms behind."""

from .http import HttpServer
from .resp import RespServer
from .users import Users

__all__ = ["HttpServer", "RespServer", "Users"]
