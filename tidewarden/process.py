"""What a daemon asks of its own process."""

from __future__ import annotations

import ctypes
import gc
import resource

FILES_WANTED = 65_536
PR_SET_DUMPABLE = 4


def calm_collector() -> None:
    """
    Let the cycle collector run rarely: what requests make dies by its reference count, and there is much of it.

    With Python's defaults it took a seventh of the processor time under load.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)


def raise_file_limit() -> None:
    """Let this process open as many files as the host allows it: each connection is one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = FILES_WANTED if hard == resource.RLIM_INFINITY else min(FILES_WANTED, hard)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def keep_memory_private() -> None:
    """
    No core dump of this process, and nobody of the same user reads its memory: keys and tokens are in there.

    What it starts is not hindered: a program that is executed begins anew, but for the limit of its core file.
    """
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    prctl = getattr(ctypes.CDLL(None), "prctl", None)  # Linux's; a handler of cores that is a pipe ignores the limit
    if prctl is not None:
        prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
