"""The routes of providers that are put: what reaches the rooms, and what is answered."""

from __future__ import annotations

import pytest
from support.doors.http_site import ALICE, site

PATH = "/v1/providers/p/settings"
SHOWN = {"provider": "p", "put_ms": 2**41, "fault": "", "settings": {"client_id": "c"}}


async def test_what_reaches_the_rooms() -> None:
    async with site(users=True, rights=("admin", "token:admin", "token:export")) as subject:

        async def ask(method: str, path: str, **more: object) -> tuple[int, object]:
            return await subject.ask(method, path, headers=ALICE, **more)

        assert await ask("PUT", PATH, data=b'{"client_id": "c"}') == (200, SHOWN)
        assert await ask("GET", PATH) == (200, SHOWN)
        status, found = await ask("GET", "/v1/providers/settings")
        assert status == 200
        assert found == {"providers": [SHOWN, SHOWN | {"provider": "whole"}]}
        assert await ask("DELETE", PATH) == (200, {"deleted": True})
        status, _ = await ask("DELETE", "/v1/providers/nobody/settings")
        assert status == 404
        assert subject.door.tokens.calls == [
            ("put_provider", "p", b'{"client_id": "c"}'),
            ("provider", "p"),
            ("remove_provider", "p"),
            ("remove_provider", "nobody"),
        ]
        for method, path in (("PUT", PATH), ("GET", PATH), ("DELETE", PATH)):
            status, _ = await ask(method, f"{path}?x=1")
            assert status == 400


@pytest.mark.parametrize("method", ["PUT", "GET", "DELETE"])
async def test_nobody_without_a_user(method: str) -> None:
    async with site() as subject:
        status, _ = await subject.ask(method, PATH)
        assert status == 401
