"""``tidewarden provider``: what it sends, and what it prints."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from support.doors.command_line import Run, node, run

__all__ = ["node", "run"]  # fixtures
SHOWN: dict[str, Any] = {
    "provider": "shop",
    "put_ms": 1_700_000_000_000,
    "fault": "",
    "settings": {"client_id": "c", "client_secret": "set", "extras": ["id"]},
}


def test_a_provider_is_put_from_a_file_or_from_standard_input(
    run: Run, node: Any, tmp_path: Path
) -> None:
    node.answers = {"P.PUT": SHOWN}
    (tmp_path / "shop.json").write_text('{"client_id": "c"}')
    first = run("provider", "put", "shop", str(tmp_path / "shop.json"))
    assert node.asked == [["P.PUT", "shop", '{"client_id": "c"}']]
    assert "2023-11-14 22:13:20" in first.stdout
    assert '["id"]' in first.stdout
    assert "not in force" not in first.stdout
    again = run("provider", "put", "shop", "-", "--json", stdin="{}")
    assert node.asked[1] == ["P.PUT", "shop", "{}"]
    assert json.loads(again.stdout) == SHOWN
    missing = run("provider", "put", "shop", str(tmp_path / "none.json"))
    assert missing.exit_code == 2
    assert "none.json: No such file" in missing.stderr


def test_providers_are_listed_shown_and_removed(run: Run, node: Any) -> None:
    fault = "it is in the configuration file"
    node.answers = {"P.LIST": [SHOWN | {"fault": fault}], "P.GET": SHOWN, "P.DELETE": 1}
    assert fault in run("provider", "list").stdout
    assert json.loads(run("provider", "list", "--json").stdout)[0]["provider"] == "shop"
    assert "client_secret" in run("provider", "show", "shop").stdout
    assert run("provider", "remove", "shop").stdout == "removed shop\n"
    node.answers = {"P.DELETE": 0}
    gone = run("provider", "remove", "shop")
    assert (gone.exit_code, "no provider 'shop' that was put" in gone.stderr) == (5, True)
