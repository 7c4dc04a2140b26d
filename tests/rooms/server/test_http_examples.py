"""The curl commands of docs/http.md about tasks, as they stand there."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from support.doors.http_store import HttpDoor, http_door

TEXT = (Path(__file__).parents[3] / "docs" / "http.md").read_text("utf-8")
COMMANDS = [
    line
    for block in re.findall(r"```sh\n(.*?)```", TEXT, re.DOTALL)
    for line in block.splitlines()
    if "7421/v1/sessions" in line or "$B" in line
]


@pytest.fixture
async def door(node: Any) -> AsyncIterator[HttpDoor]:
    made = await node()
    async with http_door(made.queues) as door:
        yield door


async def run(command: str) -> Any:
    shell = await asyncio.create_subprocess_shell(command, stdout=asyncio.subprocess.PIPE)
    said, _ = await asyncio.wait_for(shell.communicate(), 60)
    assert shell.returncode == 0, command
    return json.loads(said)


@pytest.mark.thorough
@pytest.mark.skipif(shutil.which("curl") is None, reason="no curl on this machine")
async def test_they_do_what_the_document_says(door: HttpDoor) -> None:
    assert len(COMMANDS) >= 6
    lease, session, seen = 0, "", []
    for line in COMMANDS:
        command = line.replace("127.0.0.1:7421", f"127.0.0.1:{door.port}")
        command = command.replace("$B", f"http://127.0.0.1:{door.port}/v1/queues/mail")
        command = command.replace("68719476737", str(lease)).replace("6f1c…", session)
        if "/take" in command and session:
            await door.good("POST", "/v1/queues/mail/tasks", {"id": "next"})
        found = await run(command)
        assert "error" not in found, (command, found)
        if found.get("tasks"):
            lease = found["tasks"][0]["lease"]
        session = found.get("session", session)
        seen.append(found)
    assert seen[0] == {"id": "welcome-7"}
    assert seen[1]["tasks"][0]["payload"] == "hello"
    assert seen[2] == {"acked": True}
    assert [one["id"] for one in seen[-1]["tasks"]] == ["next"]
