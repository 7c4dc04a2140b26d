"""What ``up`` refuses before it starts anything; the rest is in live/up/test_up.py."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.doors.command_line import app
from typer.testing import CliRunner

SANDBOX = '[providers.sandbox]\ntoken_url = "https://x/"\nclient_id = "x"\nauth = "none"\n'


@pytest.mark.parametrize(
    ("text", "arguments", "said"),
    [
        ('[cluster.members]\nn0 = "127.0.0.1:7420"\n', ["--store-url", "redis://127.0.0.1:1"], "cluster.members: not allowed here"),
        ('[node]\nhost = "10.0.0.1"\n', [], "node.host: found '10.0.0.1'"),
        (SANDBOX, ["--sandbox", "1"], "not allowed with --sandbox"),
        ("[nod]\n", [], "nod"),
        ("", ["--store-url", "ftp://x"], "store.url"),
    ],
)  # fmt: skip
def test_a_configuration_that_cannot_be_used(
    tmp_path: Path, text: str, arguments: list[str], said: str
) -> None:
    file = tmp_path / "config.toml"
    file.write_text(text)
    data = tmp_path / "data"
    result = CliRunner().invoke(
        app, ["up", "--config", str(file), "--data-dir", str(data), "--json", *arguments]
    )
    assert result.exit_code == 4
    assert any(said in problem for problem in json.loads(result.stdout)["problems"])
    assert not data.exists()


def test_help_teaches() -> None:
    result = CliRunner().invoke(app, ["up", "--help"])
    assert result.exit_code == 0
    assert "tidewarden up --sandbox 2000" in result.stdout
