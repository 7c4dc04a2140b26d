"""What a daemon asks of its own process."""

from __future__ import annotations

import gc
import resource

FILES_WANTED = 65_536


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
