"""Runs a node in the foreground, with its log and its signals."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Callable

import uvloop

from tidewarden import __version__
from tidewarden import log as logs
from tidewarden.clock import SystemClock
from tidewarden.config.load import Config
from tidewarden.errors import ConfigError, StoreDown

from .daemon import Daemon
from .os_process import heed_signals, keep_files_private, keep_memory_private, raise_file_limit

log = logging.getLogger("tidewarden.daemon")


async def _main(config: Config, read: Callable[[], Config]) -> None:
    keep_memory_private()
    daemon = Daemon(config, SystemClock(), raise_file_limit(config.limits))
    heed_signals(
        asyncio.get_running_loop(), daemon.stopping.set, functools.partial(daemon.reload, read)
    )
    await daemon.run()


def main(config: Config, read: Callable[[], Config]) -> None:
    """
    Run one node until SIGINT or SIGTERM.

    At SIGHUP it reads the configuration again, by ``read``, for its users and providers.

    Raises: ConfigError: what stops the start, every reason that was found.
    """
    keep_files_private()
    try:
        logs.setup(config)
    except OSError as error:
        found = f"found {config.node.data_dir!r}: {error.strerror or error}"
        raise ConfigError(
            [f"node.data_dir: {found}; allowed: a folder this process may write"]
        ) from None
    log.info(
        "tidewarden %s, node %s, data in %s", __version__, config.node.name, config.node.data_dir
    )
    if config.loss_warning:
        log.warning("%s", config.loss_warning)
    try:
        uvloop.run(_main(config, read))
    except StoreDown as error:
        raise ConfigError([f"store.url: {error}"]) from None
    finally:
        log.info("ended")
