"""The command line in this process, against a recording node."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.doors import recording_node
from typer.testing import CliRunner, Result

from tidewarden.cli import VERBS, command_line

Run = Callable[..., Result]
app = command_line(*VERBS)


@pytest.fixture
def node() -> Iterator[Any]:
    with recording_node.running() as node:
        yield node


@pytest.fixture
def run(node: Any, tmp_path: Path) -> Run:
    """Runs a verb against ``node``, in an empty folder."""

    def runner(*words: str, stdin: str | bytes = b"", url: bool = True) -> Result:
        environ = {"TIDEWARDEN_URL": node.url if url else "", "COLUMNS": "200", "TERM": "dumb"}
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(tmp_path)
            return CliRunner().invoke(app, words, input=stdin, env=environ)

    return runner
