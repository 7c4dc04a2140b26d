"""The command line as a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

from support.doors.command_line import app, node
from typer.testing import CliRunner

__all__ = ["node"]  # fixtures


def test_a_shell_completes_verbs_of_a_noun() -> None:
    environ = os.environ | {
        "_TIDEWARDEN_COMPLETE": "complete_bash",
        "COMP_CWORD": "2",
        "COMP_WORDS": "tidewarden token re",
    }
    script = "import sys; sys.argv = ['tidewarden']; from tidewarden.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", script], env=environ, capture_output=True, text=True, check=False
    )
    assert done.stdout.split() == ["refresh"]


def test_the_module_runs_as_the_command_does() -> None:
    out = subprocess.run(
        [sys.executable, "-m", "tidewarden", "version"], capture_output=True, text=True, check=True
    )
    assert out.stdout.startswith("tidewarden ")


def test_the_sandbox_runs_until_it_is_stopped(tmp_path: Path) -> None:
    argv = [
        sys.executable,
        "-m",
        "tidewarden",
        "sandbox",
        "--port",
        "0",
        "--accounts",
        "3",
        "--json",
    ]
    with subprocess.Popen(
        [*argv, "--data-dir", str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        try:
            ready = json.loads(process.stdout.readline())
            with urllib.request.urlopen(f"{ready['url']}/seed?n=3") as answer:
                assert len(answer.read().splitlines()) == 4
            second = CliRunner().invoke(app, [*argv[3:], "--data-dir", str(tmp_path)])
            assert second.exit_code == 4
            assert "another sandbox uses this folder" in second.output
            port = ready["url"].rpartition(":")[2]
            third = CliRunner().invoke(
                app, [*argv[3:5], port, "--data-dir", str(tmp_path / "other")]
            )
            assert third.exit_code == 4
            assert f"port {port} cannot be used" in third.output
        finally:
            process.terminate()
        assert process.wait(20) == 0


def test_a_terminal_of_another_encoding_shows_what_it_can(node: Any) -> None:
    node.answers = {"T.PEEK": {"account": "p/a", "message": "né доступ"}, "T.STATS": {}}
    environ = os.environ | {"PYTHONIOENCODING": "latin-1", "TIDEWARDEN_URL": node.url}
    command = [sys.executable, "-m", "tidewarden", "token", "show", "p/a"]
    done = subprocess.run(command, env=environ, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (
        0,
        b"Why, and what comes next: tidewarden token why p/a\n",
    )
    assert b"n\xe9 \\u0434\\u043e" in done.stdout
