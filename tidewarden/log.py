"""
Logs text for people on a terminal, and JSON objects, one a line, otherwise.

Each node also logs to a file in its data folder.

Callers leave secrets out of what they log. :func:`redact` is the second line of defence: it blanks
whatever looks like a secret.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import logging.handlers
import math
import os
import re
import sys
import traceback
from collections import OrderedDict
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from .clock import Clock, SystemClock

if TYPE_CHECKING:
    from .config.load import Config

FILES_KEPT = 5
REPEAT_S = 10.0
REPEATS_MAX = 3
REPEATS_KEPT = 256
_LEVELS = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}
_COLOURS = {
    logging.WARNING: "33",
    logging.ERROR: "31",
    logging.CRITICAL: "31;1",
    logging.DEBUG: "2",
}
# httpx writes each request's address at INFO, secrets in the query and all; PySyncObj its peers'
# every reconnect.
QUIET = ("httpx", "httpcore", "aiohttp.access", "asyncio", "pysyncobj", "apscheduler")
_NAMES = (
    "access_token|refresh_token|client_secret|client_assertion|assertion|subject_token"
    "|password|authorization|secret"
)
_SECRETS = (
    re.compile(
        rf"""(?i)((?:{_NAMES})["']?\s*[=:]\s*(?:(?:basic|bearer)\s+)?["']?)[^\s"'&,;}}\])]+"""
    ),
    re.compile(r"(?i)(\b(?:basic|bearer)\s+)[A-Za-z0-9+/=._~-]{8,}"),
    # The scheme is bounded, for a long word without "://" would be read anew from each of its
    # letters.
    re.compile(r"([a-z][a-z0-9+.-]{0,30}://[^\s/:@]*:)[^\s/@]+(?=@)"),
)
# What a record has of its own; all else came by ``extra=``.
_STANDARD = frozenset(logging.makeLogRecord({}).__dict__) | {
    "message",
    "asctime",
    "taskName",
    "said",
}


def redact(text: str) -> str:
    """Return ``text`` with each part blanked that looks like a secret."""
    for pattern in _SECRETS:
        text = pattern.sub(r"\1***", text)
    return text


class Json(logging.Formatter):
    """
    Formats a record as a JSON object on one line.

    Its keys: ``time`` (ISO 8601, UTC), ``level``, ``logger``, ``node``, ``message``, then
    ``extra=``.
    """

    def __init__(self, node: str) -> None:
        super().__init__()
        self._node = node

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": _time(record).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "node": self._node,
            "message": redact(record.getMessage()),
        }
        for name, value in record.__dict__.items():
            if name not in _STANDARD and name not in line:
                plain = value is None or isinstance(value, (bool, int, float))
                line[name] = value if plain else redact(str(value))
        if record.exc_info:
            line["trace"] = redact("".join(traceback.format_exception(*record.exc_info)))
        return json.dumps(line, ensure_ascii=False)


class Human(logging.Formatter):
    """Formats as ``12:00:01.234 WARNING n0 raft: message``, coloured on a terminal."""

    def __init__(self, node: str, *, colour: bool) -> None:
        super().__init__()
        self._node = node
        self._colour = colour

    def format(self, record: logging.LogRecord) -> str:
        time = _time(record).astimezone().strftime("%H:%M:%S.%f")[:-3]
        name = record.name.removeprefix("tidewarden.")
        text = f"{time} {record.levelname:7} {self._node} {name}: {redact(record.getMessage())}"
        if repeated := getattr(record, "repeated", 0):
            text += f" (and {repeated} times before)"
        if record.exc_info:
            text += "\n" + redact("".join(traceback.format_exception(*record.exc_info))).rstrip()
        code = _COLOURS.get(record.levelno)
        return f"\x1b[{code}m{text}\x1b[0m" if self._colour and code else text


class Repeats:
    """
    Suppresses warnings and errors that repeat in the same words.

    :data:`REPEATS_MAX` of them pass within :data:`REPEAT_S` seconds; the next one says how many
    were suppressed. A store that is away for an hour must not fill the log. All handlers share one.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        # since when, how often, kept back
        self._said: OrderedDict[tuple[object, ...], list[float]] = OrderedDict()

    def filter(self, record: logging.LogRecord) -> bool:
        """Tell whether the record is logged."""
        passes: bool | None = getattr(record, "said", None)
        if passes is None:
            passes = record.said = record.levelno < logging.WARNING or self._fresh(record)
        return passes

    def _fresh(self, record: logging.LogRecord) -> bool:
        extra = tuple(
            (name, str(value)) for name, value in record.__dict__.items() if name not in _STANDARD
        )
        error = str(record.exc_info[1]) if record.exc_info else ""
        key = (record.name, record.levelno, record.getMessage(), error, extra)
        now = self._clock.monotonic()
        found = self._said.pop(key, None)
        if found is None or now - found[0] >= REPEAT_S:
            if found is not None and found[2]:
                record.repeated = int(found[2])
            found = [now, 0, 0]
        passes = found[1] < REPEATS_MAX
        found[1 if passes else 2] += 1
        self._said[key] = found
        while len(self._said) > REPEATS_KEPT:
            self._said.popitem(last=False)
        return passes


class OncePer:
    """
    Lets one line of a kind pass in ``seconds``, whatever its words.

    :class:`Repeats` is for lines in the same words.
    """

    def __init__(self, clock: Clock, seconds: float) -> None:
        self._clock = clock
        self._seconds = seconds
        self._passed_at = -math.inf

    def passes(self) -> bool:
        """Return whether this line is to be logged; if so, no other is for so long."""
        now = self._clock.monotonic()
        if now - self._passed_at < self._seconds:
            return False
        self._passed_at = now
        return True


class File(logging.handlers.RotatingFileHandler):
    """
    Writes a node's log file, which other users of the host may not read.

    One that could not be written, on a full disk, is opened anew for the next line, which begins
    one of its own.
    """

    _torn = False

    def handleError(self, record: logging.LogRecord) -> None:
        """Handle a line that was not written, as :meth:`logging.Handler.handleError` does."""
        stream, self.stream = self.stream, None
        if stream is not None:
            with contextlib.suppress(OSError, ValueError):
                stream.close()
        self._torn = True
        super().handleError(record)

    def _open(self) -> io.TextIOWrapper:
        os.close(os.open(self.baseFilename, os.O_WRONLY | os.O_CREAT, 0o600))
        stream = super()._open()
        if self._torn:
            stream.write("\n")
            self._torn = False
        return stream


def setup(
    config: Config, stream: IO[str] | None = None, file: bool = True, clock: Clock | None = None
) -> None:
    """
    Log to ``stream`` (standard error by default) and, if ``file``, to DATA/NODE.log.

    The file is rotated by size.

    Replaces whatever was set up before. Warnings and what nobody caught are logged, too.

    Raises: OSError: the log file cannot be written.
    """
    out = sys.stderr if stream is None else stream
    terminal = out.isatty()
    human = config.log.format == "human" or (config.log.format == "auto" and terminal)
    console = logging.StreamHandler(out)
    console.setFormatter(
        Human(config.node.name, colour=terminal) if human else Json(config.node.name)
    )
    handlers: list[logging.Handler] = [console]
    if file:
        folder = Path(config.node.data_dir)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = folder / f"{config.node.name}.log"
        rotating = File(
            path, maxBytes=config.log.file_bytes, backupCount=FILES_KEPT, encoding="utf-8"
        )
        rotating.setFormatter(Json(config.node.name))
        handlers.append(rotating)
    repeats = Repeats(clock or SystemClock())
    close()
    root = logging.getLogger()
    level = _LEVELS[config.log.level]
    root.setLevel(level)
    for handler in handlers:
        handler.addFilter(repeats)
        root.addHandler(handler)
    for name in QUIET:
        logging.getLogger(name).setLevel(max(level, logging.WARNING))
    # a full disk or a closed terminal must not spill traces or stop the daemon
    logging.raiseExceptions = False
    logging.captureWarnings(True)
    sys.excepthook = _uncaught


def close() -> None:
    """Flush and take away the handlers of :func:`setup`; called again it does nothing."""
    root = logging.getLogger()
    for handler in list(root.handlers):
        if isinstance(handler.formatter, (Json, Human)):
            root.removeHandler(handler)
            # A terminal that has gone, or was closed, takes nothing more, which is no failure.
            with contextlib.suppress(OSError, ValueError):
                handler.flush()
            if isinstance(handler, logging.FileHandler):
                handler.close()


def _uncaught(kind: type[BaseException], error: BaseException, trace: Any) -> None:
    if issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, error, trace)
        return
    logging.getLogger("tidewarden").critical(
        "uncaught %s", kind.__name__, exc_info=(kind, error, trace)
    )


def _time(record: logging.LogRecord) -> datetime:
    return datetime.fromtimestamp(record.created, UTC)
