"""
Makes the commands on the primaryship that a replicated store's data name.

The hash ``{cluster}:primary`` has ``view``, ``stamp``, ``set``, ``seq``, ``founding`` and ``node``
(the ``node.incarnation`` that opened it). Only the functions of ``view_library.lua`` write it,
which a primary's node loads and calls; the string ``{cluster}:view``, which lease numbers begin
with, follows it.
"""

from __future__ import annotations

from importlib import resources

Command = tuple[str | int, ...]

LIBRARY = "#!lua name=tidewarden_view\n" + (
    resources.files(__package__).joinpath("view_library.lua").read_text("utf-8")
)
"""The argument of ``FUNCTION LOAD``."""


def primary_key(cluster: str) -> str:
    """Return the key of the hash of the primaryship."""
    return f"{{{cluster}}}:primary"


def view_key(cluster: str) -> str:
    """Return the key of the string that has the view alone."""
    return f"{{{cluster}}}:view"


def mark_command(cluster: str) -> Command:
    """
    Return the command that counts one mark.

    Its answer: the view, the number of the mark, and the set that has to acknowledge it (bytes as
    :func:`tidewarden.raft.store_facts.set_text` makes them; empty: nothing can be confirmed).
    """
    return "FCALL", "mark", 1, primary_key(cluster)


def open_command(cluster: str, view: int, stamp: int, in_sync: str, member: str) -> Command:
    """
    Return the command that opens a primaryship, or changes the set within it.

    ``in_sync``: the set, empty while it is too small to confirm anything. ``member``: the primary's
    ``node.incarnation``. It is refused (``STALE``) unless (``view``, ``stamp``) is greater than
    what the data have.
    """
    keys = primary_key(cluster), view_key(cluster)
    return "FCALL", "open", 2, *keys, view, stamp, in_sync, member
