"""
Maps names of tubes to names of queues: to each tube its queue, and no two to the same.

A character that both may have stands for itself. A tube's ``;`` is a queue's ``:``, and a character
that a queue's name cannot have (or a name that it cannot be: ``.`` and ``..``) is written ``:-``
and a letter. So every tube has a queue; a queue has no tube when it is the system's (its name
begins with ``_``), when its name begins with ``-``, or has a ``:-`` that no tube's name makes.
"""

from __future__ import annotations

import re

from tidewarden.queue.task import UNREACHABLE

TUBE_MAX = 200
QUEUE_MAX = 200
_TUBE = re.compile(r"[A-Za-z0-9+/;.$_()][A-Za-z0-9+/;.$_()-]*")
_WRITTEN = {"+": ":-p", "$": ":-d", "(": ":-l", ")": ":-r"}
_READ = {"p": "+", "d": "$", "l": "(", "r": ")", "s": ";", "u": "_", "o": "."}
_FOREIGN = re.compile(r"[;+$()]")
_ESCAPE = re.compile(r":-([pdlrsuo])|:")


def is_tube(name: str) -> bool:
    """Return whether beanstalkd would take the name for a tube's."""
    return len(name) <= TUBE_MAX and _TUBE.fullmatch(name) is not None


def queue_of(tube: str) -> str | None:
    """
    Return the queue of a tube whose name is one (:func:`is_tube`).

    None: its name is too long for a queue's, because of characters that take three there.
    """
    queue = _FOREIGN.sub(_write, tube)
    if queue.startswith("_"):
        queue = ":-u" + queue[1:]
    if queue in UNREACHABLE:
        queue = ":-o" * len(queue)
    return queue if len(queue) <= QUEUE_MAX else None


def tube_of(queue: str) -> str | None:
    """Return the tube of a queue; None: it has none."""
    tube = _ESCAPE.sub(lambda found: _READ[found[1]] if found[1] else ";", queue)
    return tube if is_tube(tube) and queue_of(tube) == queue else None


def _write(found: re.Match[str]) -> str:
    text = found[0]
    if text != ";":
        return _WRITTEN[text]
    return ":-s" if found.string[found.end() : found.end() + 1] == "-" else ":"
