"""Whatever is asked of a door: of its arguments nothing is counted or tapped but a name."""

from __future__ import annotations

import pytest
from support.doors import doubles
from support.doors.http_site import ALICE, site

from tidewarden.clock import SystemClock
from tidewarden.server.traffic.cluster_traffic import ClusterTraffic, mac_of
from tidewarden.server.traffic.node_traffic import NodeTraffic
from tidewarden.server.traffic.recorder import NO_NAME, Recorder
from tidewarden.server.traffic.tap import TapFilter
from tidewarden.server.verbs.table import COMMANDS

GRANT = b'{"refresh_token":"hush","access_token":"hush"}'
TOKEN = b"ya29.hush-" + b"hush" * 20
WAIT = {"R.TAP", "QUIT", "RESET", "CLIENT"}  # they change the connection, or take their time


def shown(recorder: Recorder, lines: list[str]) -> str:
    tables = recorder.harvest()
    return str([list(table.entries()) for table in tables.by.values()]) + "\n".join(lines)


@pytest.mark.parametrize("secret", [GRANT, TOKEN], ids=["grant", "token"])
async def test_no_argument_is_shown_but_the_name(secret: bytes) -> None:
    recorder = Recorder(SystemClock())
    tap = recorder.taps.begin(TapFilter(), lambda: None)
    async with doubles.Door(users=(doubles.ADMIN,), traffic=recorder) as door:
        line = await door.dial()
        await line.call("AUTH", "admin", doubles.SECRET)
        asked = 0
        for command in {one.name: one for one in COMMANDS.values()}.values():
            if command.name in WAIT:
                continue
            for size in {command.least - 1, min(command.most, command.least + 3) - 1, 1}:
                words = [secret] * size
                if command.subject and words:
                    words[command.subject - 1 if command.subject > 0 else -1] = b"a.name"
                await line.call(command.name, *words)
                asked += 1
        text = shown(recorder, tap.take())
        assert "a.name" in text
        assert "hush" not in text
        assert asked > 150


async def test_a_grant_where_the_name_should_be_is_not_shown() -> None:
    recorder = Recorder(SystemClock())
    tap = recorder.taps.begin(TapFilter(), lambda: None)
    async with doubles.Door(users=(doubles.ADMIN,), traffic=recorder) as door:
        line = await door.dial()
        await line.call("AUTH", "admin", doubles.SECRET)
        for verb in ("T.PUT", "Q.PUT", "S.PUT", "L.ACQUIRE"):
            await line.call(verb, GRANT, "shop/anna")
        await line.call("T.GET", TOKEN)
        text = shown(recorder, tap.take())
        assert NO_NAME in text
        assert "hush" not in text
        assert "anna" not in text


async def test_over_http_an_admin_alone_is_told() -> None:
    recorder = Recorder(SystemClock())
    own = NodeTraffic(recorder, SystemClock())
    of_cluster = ClusterTraffic("n0", own, mac_of("x"), dict)
    for rights, status in ((("stats", "put", "take", "token:read"), 403), (("admin",), 200)):
        async with site(
            users=True, rights=rights, traffic=recorder, traffic_of_cluster=of_cluster
        ) as subject:
            assert (await subject.ask("GET", "/v1/traffic"))[0] == 401
            assert (await subject.ask("GET", "/v1/traffic", headers=ALICE))[0] == status
            assert (await subject.ask("GET", "/v1/tap?ms=1", headers=ALICE))[0] == status
            bad, body = await subject.ask("GET", "/v1/traffic?top=1000", headers=ALICE)
            if status == 200:
                assert bad == 400
                assert "top" in body["message"]
                assert (await subject.ask("GET", "/v1/traffic?node=n7", headers=ALICE))[0] == 404
    found, _ = own.seen("request", "start")
    keys = {key for key, _, _ in found.entries()}
    assert ("admin", "R.TRAFFIC", "", "") in keys
