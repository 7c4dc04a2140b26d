"""``tidewarden token why`` and ``token provider``: stories as a person reads them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.doors.command_line import Run, node, run

from tidewarden import errors
from tidewarden.cli.token.why import lines_of

__all__ = ["node", "run"]  # fixtures
NOW_MS = 1_700_000_000_000  # 2023-11-14 22:13:20
STORY: dict[str, Any] = {
    "name": "p/a", "state": "failing", "since_ms": NOW_MS - 60_000, "now_ms": NOW_MS,
    "summary": "p/a is failing since a minute: p refuses it.",
    "asked": [
        {"at_ms": NOW_MS - 3_600_000, "outcome": "ok", "brief": "a new pair was stored"},
        {"at_ms": NOW_MS - 60_000, "outcome": "invalid_grant", "brief": "HTTP 400 invalid_grant"},
        {"at_ms": NOW_MS, "outcome": "timeout", "brief": "timeout"},
    ],
    "concluded": [{"code": "refused", "text": "It was refused " + "long " * 40 + "ago.", "refusals": 1}],
    "next": {"code": "retry", "text": "It is asked again.", "at_ms": NOW_MS + 60_000},
    "advice": [],
}  # fmt: skip


@pytest.mark.thorough
def test_why_tells_the_story_in_sections(run: Run, node: Any) -> None:
    node.answers = {"T.WHY": STORY}
    result = run("token", "why", "p/a")
    lines = result.stdout.splitlines()
    assert node.asked == [["T.WHY", "p/a"]]
    assert lines[0] == "p/a is failing since a minute: p refuses it."
    assert "What was answered lately (UTC; it is 2023-11-14 22:13:20 now)" in lines
    assert "  2023-11-14 21:13:20  60 min ago  ok              a new pair was stored" in lines
    assert "  2023-11-14 22:12:20    60 s ago  invalid_grant   HTTP 400 invalid_grant" in lines
    assert "  2023-11-14 22:13:20     0 s ago  timeout" in lines, (
        "what is the same is not said twice"
    )
    assert lines[-2:] == ["What you can do", "  - Nothing need be done."]
    assert json.loads(run("token", "why", "p/a", "--json").stdout) == STORY
    node.answers = {"T.WHY": STORY | {"stale_ms": 4000}}
    assert run("token", "why", "p/a").stdout.splitlines() == [
        *lines,
        "no majority of the nodes is in reach: this is what the node's own copy has",
    ]


def test_long_words_and_control_characters_do_no_harm() -> None:
    story = STORY | {"summary": "\x1b[31mred " + "x" * 300, "advice": ["a\nb"]}
    lines = lines_of(story, 80)
    assert "\x1b" not in "\n".join(lines)
    assert all(len(line) <= 80 or "x" * 300 in line for line in lines)
    assert lines[-1] == "  - a\\nb"


@pytest.mark.thorough
def test_a_provider_is_steered_and_its_story_shown(run: Run, node: Any) -> None:
    node.answers = {"T.PROVIDER": STORY | {"name": "p", "summary": "p answers."}}
    for action in ("release", "probe", "quarantine"):
        node.asked.clear()
        assert run("token", "provider", action, "p").stdout.startswith("p answers.\n")
        assert node.asked == [["T.PROVIDER", action.upper(), "p"]]
    assert json.loads(run("token", "provider", "probe", "p", "--json").stdout)["name"] == "p"
    node.answers = {"T.PROVIDER": errors.NotFound("there is no provider 'x'; configured: p")}
    result = run("token", "provider", "release", "x")
    assert (result.exit_code, "there is no provider 'x'; configured: p" in result.stderr) == (
        1,
        True,
    )
