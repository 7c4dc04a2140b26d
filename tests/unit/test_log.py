"""Logs: two forms, a file that is set aside by size, and secrets blanked."""

from __future__ import annotations

import io
import json
import logging
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.manual_clock import ManualClock

from tidewarden import log
from tidewarden.config.load import Config, Log, Node


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    level, hook = logging.getLogger().level, sys.excepthook
    yield
    log.close()
    logging.captureWarnings(False)
    logging.getLogger().setLevel(level)
    logging.raiseExceptions = True
    sys.excepthook = hook
    for name in log.QUIET:
        logging.getLogger(name).setLevel(logging.NOTSET)


def config(folder: Path, **fields: object) -> Config:
    return Config(node=Node(name="n7", data_dir=str(folder)), log=Log(**fields))  # type: ignore[arg-type]


def test_a_line_of_json_where_no_terminal_is(tmp_path: Path) -> None:
    stream = io.StringIO()
    log.setup(config(tmp_path), stream)
    logging.getLogger("tidewarden.raft").info(
        "became %s", "leader", extra={"epoch": 7, "peer": "n1"}
    )
    logging.getLogger("tidewarden.raft").debug("not shown")
    line = json.loads(stream.getvalue())
    assert line.pop("time").endswith("Z")
    assert line == {
        "level": "info",
        "logger": "tidewarden.raft",
        "node": "n7",
        "message": "became leader",
        "epoch": 7,
        "peer": "n1",
    }
    assert (tmp_path / "n7.log").read_text("utf-8") == stream.getvalue()
    assert (tmp_path / "n7.log").stat().st_mode & 0o077 == 0, "it names users and accounts"


def test_for_a_person_on_a_terminal_and_json_in_the_file(tmp_path: Path) -> None:
    stream = Terminal()
    log.setup(config(tmp_path), stream)
    logging.getLogger("tidewarden.raft").warning("lost %d", 3)
    assert "WARNING n7 raft: lost 3" in stream.getvalue()
    assert stream.getvalue().startswith("\x1b[33m")
    assert json.loads((tmp_path / "n7.log").read_text("utf-8"))["level"] == "warning"


@pytest.mark.parametrize(
    ("form", "stream", "is_json"), [("json", Terminal(), True), ("human", io.StringIO(), False)]
)
def test_the_form_may_be_chosen(
    tmp_path: Path, form: str, stream: io.StringIO, is_json: bool
) -> None:
    log.setup(config(tmp_path, format=form), stream)
    logging.getLogger("tidewarden").info("hello")
    assert stream.getvalue().startswith("{") is is_json
    assert "\x1b" not in stream.getvalue()


def test_traces_and_warnings_are_logged_in_one_line_of_json(tmp_path: Path) -> None:
    stream = io.StringIO()
    log.setup(config(tmp_path), stream, file=False)
    try:
        raise ValueError("password=hunter2")
    except ValueError:
        logging.getLogger("tidewarden").exception("it failed")
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.warn("careful", UserWarning, stacklevel=1)
    sys.excepthook(ValueError, ValueError("loose"), None)
    failed, warned, loose = (json.loads(line) for line in stream.getvalue().splitlines())
    assert "ValueError" in failed["trace"]
    assert "hunter2" not in failed["trace"]
    assert "careful" in warned["message"]
    assert loose["level"] == "critical"
    assert not list(tmp_path.iterdir())


@pytest.mark.thorough
def test_the_file_is_set_aside_by_size(tmp_path: Path) -> None:
    log.setup(config(tmp_path, file_bytes=65_536), io.StringIO())
    for _ in range(80):
        logging.getLogger("tidewarden").info("x" * 10_000)
    log.close()
    files = sorted(path.name for path in tmp_path.iterdir())
    assert files == ["n7.log", *(f"n7.log.{number}" for number in range(1, log.FILES_KEPT + 1))]
    assert all(path.stat().st_size <= 65_536 for path in tmp_path.iterdir())


@pytest.mark.parametrize("bytes_max", [1_048_576, 1])
def test_after_a_full_disk_the_file_is_written_again(tmp_path: Path, bytes_max: int) -> None:
    """Whether the disk was full in the midst of a line, or when the file was to be set aside."""
    path = tmp_path / "n7.log"
    path.symlink_to("/dev/full")
    log.setup(config(tmp_path), io.StringIO())
    handler = next(one for one in logging.getLogger().handlers if isinstance(one, log.File))
    handler.maxBytes = bytes_max
    for number in range(3):
        logging.getLogger("tidewarden.raft").info("nobody reads this %d %s", number, "x" * 10_000)
    path.unlink()  # there is room again
    for number in range(3):
        logging.getLogger("tidewarden.raft").info("line %d", number)
    lines = [
        line
        for name in sorted(tmp_path.iterdir(), reverse=True)
        for line in name.read_text().splitlines()
        if line
    ]
    assert [json.loads(line)["message"] for line in lines] == ["line 0", "line 1", "line 2"]


def test_set_up_again_replaces_what_was(tmp_path: Path) -> None:
    first, second = io.StringIO(), io.StringIO()
    log.setup(config(tmp_path), first)
    log.setup(config(tmp_path), second)
    logging.getLogger("tidewarden").info("hello")
    assert first.getvalue() == ""
    assert len(second.getvalue().splitlines()) == 1


def test_libraries_that_show_addresses_are_silenced_below_warning(tmp_path: Path) -> None:
    stream = io.StringIO()
    log.setup(config(tmp_path, level="debug"), stream)
    logging.getLogger("httpx").info("HTTP Request: POST https://x/?refresh_token=hunter2")
    assert stream.getvalue() == ""


@pytest.mark.parametrize(
    "text",
    [
        "refresh_token=hunter2",
        "POST https://x/?a=b&refresh_token=hunter2&c=d",
        '{"access_token": "hunter2", "x": 1}',
        "{'client_secret': 'hunter2'}",
        "Authorization: Basic aHVudGVyMg==hunter2",
        "header Bearer hunter2hunter2",
        "redis://admin:hunter2@127.0.0.1:7420",
        "unix://:hunter2@/run/s",
        "password = hunter2",
    ],
)
def test_what_looks_like_a_secret_is_blanked(text: str) -> None:
    assert "hunter2" not in log.redact(text)
    assert "***" in log.redact(text)


@pytest.mark.thorough
def test_a_long_text_costs_no_more_than_its_length() -> None:
    """
    A word without blanks was once read anew from each of its letters: seconds for 100,000 of them.
    """
    begun = time.process_time()
    assert log.redact("x" * 1_000_000) == "x" * 1_000_000
    assert time.process_time() - begun < 20


def test_other_text_is_left_alone() -> None:
    for text in (
        "n1 at 127.0.0.1:7430 became leader",
        "account sandbox/user-1 is due in 5 s",
        "https://h:80/a@b",
    ):
        assert log.redact(text) == text


async def test_what_is_said_again_and_again_is_said_now_and_then(tmp_path: Path) -> None:
    stream, clock = io.StringIO(), ManualClock()
    log.setup(config(tmp_path, format="human"), stream, clock=clock)
    logger = logging.getLogger("tidewarden.store")
    for _ in range(40):
        logger.warning("the store is %s", "away")
        logger.error("the store is away")
        logger.warning("the store is away", extra={"peer": "b"})
        logger.info("a change")
        await clock.advance(0.5)
    said = stream.getvalue().splitlines()
    plain, again = "the store is away", "the store is away (and 17 times before)"
    said_of = {
        level: [line.partition("store: ")[2] for line in said if level in line]
        for level in ("WARNING", "ERROR")
    }
    assert said_of["ERROR"] == [plain] * 3 + [again] + [plain] * 2
    assert said_of["WARNING"] == [plain] * 6 + [again] * 2 + [plain] * 4, "of one and of another"
    assert sum("a change" in line for line in said) == 40
    lines = [json.loads(line) for line in (tmp_path / "n7.log").read_text().splitlines()]
    assert len(lines) == len(said), "all handlers are at one"
    assert {line.get("repeated", 0) for line in lines} == {0, 17}
    assert not any("said" in line for line in lines)
    for number in range(2 * log.REPEATS_KEPT):
        logger.warning("number %d", number)
    logger.warning("number 0")
    assert stream.getvalue().count("number 0\n") == 2, "only so many are remembered"


async def test_one_line_of_a_kind_passes_in_so_many_seconds() -> None:
    clock = ManualClock()
    complaints = log.OncePer(clock, 10.0)
    assert [complaints.passes(), complaints.passes()] == [True, False]
    await clock.advance(9.9)
    assert not complaints.passes()
    await clock.advance(0.1)
    assert [complaints.passes(), complaints.passes()] == [True, False]


def test_what_was_closed_before_is_no_failure(tmp_path: Path) -> None:
    with (tmp_path / "out").open("w") as stream:
        log.setup(config(tmp_path), stream, file=False)
    log.close()
    assert not any(isinstance(one.formatter, log.Json) for one in logging.getLogger().handlers)
