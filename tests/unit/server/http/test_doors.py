"""The HTTP door: health, who may ask, and rubbish."""

from __future__ import annotations

import asyncio
import io
import re
from collections.abc import Callable
from typing import Any

import aiohttp
import pytest
from support.doors import doubles
from support.doors.http_site import ALICE, site
from support.inspect import http_runner_of

from tidewarden.errors import NotFound, StoreDown
from tidewarden.server.http import metrics


async def test_health_says_why_not() -> None:
    trouble = {"live": "", "ready": "the store is away"}
    async with site(
        users=True, alive=lambda: trouble["live"], ready=lambda: trouble["ready"]
    ) as subject:
        assert await subject.ask("GET", "/health/live") == (200, {"ok": True, "reason": ""})
        assert await subject.ask("GET", "/health/ready") == (
            503,
            {"ok": False, "reason": "the store is away"},
        )
        trouble.update(live="the sweep has not turned for 9 s", ready="")
        assert (await subject.ask("GET", "/health/live"))[0] == 503
        assert (await subject.ask("GET", "/health/ready"))[0] == 200


async def test_strangers_are_told_no_versions() -> None:
    async with site() as subject, aiohttp.ClientSession() as session:
        for path in ("/health/live", "/nonsense"):
            async with session.get(f"http://127.0.0.1:{subject.server.port}{path}") as response:
                assert response.headers["Server"] == "tidewarden"
                assert response.headers["X-Content-Type-Options"] == "nosniff"


async def test_leader_is_200_on_the_leader_alone() -> None:
    async with site(users=True) as subject:
        assert await subject.ask("GET", "/leader") == (
            200,
            {"node": "n0", "role": "leader", "leader": "n0"},
        )
        assert (await subject.ask("HEAD", "/leader"))[0] == 200
        subject.door.cluster.seen.update(role="follower", leader="n1")
        assert (await subject.ask("GET", "/leader"))[0] == 503


async def test_nodes_ask_without_a_user_and_strangers_hear_nothing() -> None:
    def answer(raw: bytes) -> bytes | None:
        return b"known" if raw == b"a node" else None

    async with site(users=True, internal={"/internal/tokens": answer}) as subject:
        assert await subject.ask("POST", "/internal/tokens", data=b"a node") == (200, "known")
        for data in (b"", b"a stranger", b"x" * 5000, b"x" * 500_000):
            assert await subject.ask("POST", "/internal/tokens", data=data) == (403, "")
        assert (await subject.ask("GET", "/internal/tokens"))[0] == 405
        assert (await subject.ask("POST", "/internal/else", data=b"a node"))[0] == 401


@pytest.mark.parametrize(
    "path", ["/v1/status", "/metrics", "/v1/tokens", "/v1/tokens/p/a", "/nonsense"]
)
async def test_where_there_are_users_the_rest_wants_one(path: str) -> None:
    async with site(users=True) as subject:
        status, body = await subject.ask("GET", path)
        assert (status, body["error"]) == (401, "NOAUTH")
        status, body = await subject.ask(
            "GET", path, headers={"Authorization": "Bearer admin:wrong"}
        )
        assert (status, body["error"]) == (401, "WRONGPASS")
        status, body = await subject.ask("GET", path, headers={"Authorization": "Basic YTpi"})
        assert (status, body["error"]) == (401, "NOAUTH")
        assert (await subject.ask("GET", path, headers=ALICE))[0] == (
            404 if path == "/nonsense" else 200
        )
        assert not [call for call in subject.door.tokens.calls if call[0] == "put"]


async def test_a_secret_alone_is_the_only_users() -> None:
    async with site(users=True) as subject:
        headers = {"Authorization": f"Bearer {doubles.SECRET}"}
        assert (await subject.ask("GET", "/v1/status", headers=headers))[0] == 200


async def test_without_users_the_tokens_stay_closed() -> None:
    async with site() as subject:
        status, body = await subject.ask("GET", "/v1/status")
        assert (status, body["role"]) == (200, "leader")
        for path in ("/v1/tokens/p/a", "/v1/accounts/p/a", "/v1/providers"):
            status, body = await subject.ask("GET", path)
            assert (status, body["error"]) == (401, "NOAUTH")


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "evil.example:7421"},
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Host": "127.0.0.1.evil.example"},
    ],
)
async def test_a_web_page_elsewhere_is_refused(headers: dict[str, str]) -> None:
    async with site() as subject:
        status, body = await subject.ask("GET", "/v1/status", headers=headers)
        assert (status, body["error"]) == (403, "DENIED")
    async with site(users=True) as subject:
        assert (await subject.ask("GET", "/v1/status", headers={**ALICE, **headers}))[0] == 200


@pytest.mark.parametrize(
    "headers",
    [{"Host": "localhost:7421"}, {"Host": "[::1]:7421"}, {"Origin": "http://127.0.0.1:3000"}],
)
async def test_a_page_of_this_machine_is_served(headers: dict[str, str]) -> None:
    async with site() as subject:
        assert (await subject.ask("GET", "/v1/status", headers=headers))[0] == 200


async def test_wrong_paths_and_methods() -> None:
    async with site(users=True) as subject:
        status, body = await subject.ask("GET", "/v2/x", headers=ALICE)
        assert (status, body["error"]) == (404, "NOTFOUND")
        status, body = await subject.ask("DELETE", "/v1/status", headers=ALICE)
        assert (status, body["error"]) == (405, "BADARG")
        status, body = await subject.ask(
            "PUT", "/v1/tokens/p/a", headers=ALICE, data=io.BytesIO(b"x" * 2_000_000)
        )
        assert (status, body["error"]) == (413, "TOOBIG")


@pytest.mark.parametrize(
    "rubbish",
    [
        b"\x16\x03\x01\r\n\r\n",
        b"GET\r\n\r\n",
        b"*1\r\n$4\r\nPING\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
    ],
)
async def test_rubbish_gets_a_400_and_the_door_lives(rubbish: bytes) -> None:
    async with site() as subject:
        reader, writer = await asyncio.open_connection("127.0.0.1", subject.server.port)
        writer.write(rubbish)
        assert b" 400 " in await asyncio.wait_for(reader.readline(), 20)
        writer.close()
        assert (await subject.ask("GET", "/health/live"))[0] == 200


async def test_a_body_in_another_encoding_than_it_says_is_no_defect_of_ours(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with site(users=True) as subject:
        headers = ALICE | {"Content-Encoding": "gzip"}
        status, body = await subject.ask(
            "PUT", "/v1/tokens/p/a", headers=headers, data=io.BytesIO(b"{}")
        )
        assert (status, body["error"]) == (400, "BADARG")
        assert (await subject.ask("GET", "/health/live"))[0] == 200
    assert not caplog.records


async def test_a_defect_is_a_500_without_its_text(caplog: pytest.LogCaptureFixture) -> None:
    async with site() as subject:
        subject.door.cluster.status = _raise(RuntimeError("secret detail"))
        status, body = await subject.ask("GET", "/v1/status")
        assert (status, body["error"]) == (500, "INTERNAL")
        assert "secret" not in body["message"]
        assert "secret detail" in caplog.text


async def test_metrics() -> None:
    async with site(
        stats={"resp": lambda: {"connections": 3, "errors_total": {"BADARG": 2}}}
    ) as subject:
        status, text = await subject.ask("GET", "/metrics")
        assert status == 200
        for line in (
            'tidewarden_queue_ready{queue="mail"} 0.0',
            'tidewarden_queue_puts_total{queue="_tokens:x"} 7.0',
            "tidewarden_cluster_epoch 3.0",
            "tidewarden_cluster_leads 1.0",
            "tidewarden_resp_connections 3.0",
            'tidewarden_resp_errors_total{kind="BADARG"} 2.0',
            'tidewarden_tokens_accounts{kind="fresh",provider="p"} 2.0',
            'tidewarden_tokens_refreshes_total{kind="ok",provider="p"} 9.0',
            'tidewarden_tokens_in_flight{provider="p"} 1.0',
            "tidewarden_tokens_spares_total 3.0",
            'tidewarden_tokens_spares_stored{provider="p"} 1.0',
            "tidewarden_tokens_journal_pending 4.0",
            "tidewarden_tokens_journal_unreadable 0.0",
            "tidewarden_tokens_figures_age_seconds 0.5",
            'tidewarden_scrape_complete{kind="accounts"} 1.0',
            'tidewarden_scrape_complete{kind="queues"} 1.0',
        ):
            assert line in text.splitlines()


async def test_metrics_that_are_sent_in_parts_say_how_long_they_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(metrics, "PART_BYTES", 100)
    async with site() as subject:
        url = f"http://127.0.0.1:{subject.server.port}/metrics"
        async with subject.session.get(url) as response:
            text = await response.read()
            assert response.headers["Content-Length"] == str(len(text))
            assert len(text) > 1000
            assert text.endswith(b"\n")
        async with subject.session.head(url) as response:
            assert (response.status, await response.read()) == (200, b"")
        assert (await subject.ask("GET", "/health/live"))[0] == 200


async def test_metrics_of_the_node_survive_the_store() -> None:
    async with site() as subject:
        subject.door.queues.catalog.names = _raise(StoreDown("away"))
        status, text = await subject.ask("GET", "/metrics")
        assert status == 200
        assert "tidewarden_cluster_epoch 3.0" in text


async def test_metrics_do_not_wait_for_a_store_that_owes_an_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An alert that the store is away would never come: the scrape would have been given up."""
    monkeypatch.setattr(metrics, "STORE_S", 0.01)
    never: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    async with site() as subject:
        subject.door.queues.catalog.names = lambda: never
        status, text = await subject.ask("GET", "/metrics")
        assert status == 200
        assert "tidewarden_cluster_epoch 3.0" in text
        assert 'tidewarden_tokens_accounts{kind="fresh",provider="p"} 2.0' in text
        assert 'tidewarden_scrape_complete{kind="accounts"} 1.0' in text
        assert 'tidewarden_scrape_complete{kind="queues"} 0.0' in text


async def test_metrics_say_what_is_missing_and_show_the_rest() -> None:
    """
    Of thousands of providers no figure of tokens was shown, not this node's own either, and the
    answer looked like any other.
    """
    async with site() as subject:

        async def nothing(_wait_s: float) -> None:
            return None

        subject.door.tokens.latest_stats = nothing
        text = (await subject.ask("GET", "/metrics"))[1]
        assert 'tidewarden_scrape_complete{kind="accounts"} 0.0' in text
        assert "tidewarden_tokens_figures_age_seconds" not in text
        assert "tidewarden_tokens_accounts" not in text
        assert 'tidewarden_tokens_refreshes_total{kind="ok",provider="p"} 9.0' in text
        assert 'tidewarden_queue_ready{queue="mail"} 0.0' in text


async def test_metrics_show_the_queues_that_have_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "QUEUES_S", 0.05)
    never: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    async with site() as subject:
        told = subject.door.queues.admin.stats

        async def stats(queue: str, *, marks: bool) -> Any:
            return await (asyncio.shield(never) if queue == "mail" else told(queue))

        subject.door.queues.admin.stats = stats
        text = (await subject.ask("GET", "/metrics"))[1]
        assert 'tidewarden_queue_puts_total{queue="_tokens:x"} 7.0' in text
        assert 'queue="mail"' not in text
        assert 'tidewarden_scrape_complete{kind="queues"} 0.0' in text
        for error, complete in ((StoreDown("away"), 0), (NotFound("it has gone"), 1)):
            subject.door.queues.admin.stats = _raise(error)
            text = (await subject.ask("GET", "/metrics"))[1]
            assert f'tidewarden_scrape_complete{{kind="queues"}} {complete}.0' in text


def _raise(error: Exception) -> Callable[..., Any]:
    def fail(*_: object, **_options: object) -> Any:
        raise error

    return fail


RIGHTS = (
    "put",
    "take",
    "stats",
    "admin",
    "lock",
    "schedule",
    "token:read",
    "token:write",
    "token:export",
    "token:admin",
)
FIGURES = "put take stats admin"
LOOK = "token:read token:write token:admin"
ROUTES = {
    "GET /health/live": "nobody",
    "GET /health/ready": "nobody",
    "GET /leader": "nobody",
    "GET /v1/openapi.json": "nobody",
    "GET /": "nobody",
    "GET /console/{file}": "nobody",
    "POST /console/login": "a page",
    "POST /console/logout": "a page",
    "GET /v1/whoami": "",
    "GET /v1/overview": "",
    "GET /v1/alerts": "",
    "GET /v1/history": "",
    "GET /v1/forecast": LOOK,
    "GET /metrics": "",
    "GET /v1/status": "",
    "GET /v1/tokens": LOOK,
    "GET /v1/tokens/{provider}/{account}": "token:read",
    "POST /v1/tokens:read": "token:read",
    "PUT /v1/tokens/{provider}/{account}": "token:write",
    "DELETE /v1/tokens/{provider}/{account}": "token:write",
    "POST /v1/tokens/{provider}/{account}/refresh": "token:write",
    "POST /v1/tokens/{provider}/{account}/connect": "token:write",
    "POST /v1/tokens/{provider}/{account}/device": "token:write",
    "GET /v1/connect/{provider}/{account}": "nobody",
    "GET /v1/connect/callback": "nobody",
    "GET /v1/connect/put-callback/{provider}": "nobody",
    "GET /v1/accounts/{provider}/{account}": LOOK,
    "GET /v1/accounts/{provider}/{account}/why": LOOK,
    "GET /v1/answers/{provider}/{account}": "token:export",
    "GET /v1/providers": LOOK,
    "GET /v1/providers/{provider}/why": LOOK,
    "POST /v1/providers/{provider}/release": "token:admin",
    "POST /v1/providers/{provider}/probe": "token:admin",
    "POST /v1/providers/{provider}/quarantine": "token:admin",
    "GET /v1/providers/settings": "token:admin",
    "GET /v1/providers/{provider}/settings": "token:admin",
    "DELETE /v1/providers/{provider}/settings": "token:admin",
    "PUT /v1/providers/{provider}/settings": "two rights",
    "GET /v1/events": LOOK,
    "GET /v1/audit": "admin",
    "GET /v1/schedules": "",
    "GET /v1/schedules/{name}": "schedule",
    "PUT /v1/schedules/{name}": "schedule",
    "DELETE /v1/schedules/{name}": "schedule",
    "POST /v1/schedules/{name}/pause": "schedule",
    "POST /v1/schedules/{name}/resume": "schedule",
    "GET /v1/queues": "",
    "GET /v1/queues/{queue}": FIGURES,
    "GET /v1/queues/{queue}/stats": FIGURES,
    "GET /v1/queues/{queue}/history": FIGURES,
    "PATCH /v1/queues/{queue}": "admin",
    "POST /v1/queues/{queue}/tasks": "put",
    "GET /v1/queues/{queue}/tasks": "take admin",
    "POST /v1/queues/{queue}/take": "take",
    "POST /v1/queues/{queue}/ack": "take",
    "POST /v1/take": "",
    "GET /v1/queues/{queue}/tasks/{id}": "take admin",
    "PATCH /v1/queues/{queue}/tasks/{id}": "admin",
    "DELETE /v1/queues/{queue}/tasks/{id}": "admin",
    "GET /v1/queues/{queue}/tasks/{id}/result": "put admin",
    **{
        f"POST /v1/queues/{{queue}}/tasks/{{id}}/{how}": "take"
        for how in ("ack", "release", "fail", "bury", "touch")
    },
    **{
        f"POST /v1/queues/{{queue}}/{how}": "admin"
        for how in (
            "pause",
            "resume",
            "purge",
            "release-all",
            "check",
            "buried/kick",
            "buried/move",
            "buried/delete",
        )
    },
    "DELETE /v1/queues/{queue}": "admin",
    "POST /v1/schedules/{name}/run": "schedule",
    "GET /v1/schedules:next": "",
    "DELETE /v1/topics/{topic}": "admin",
    "POST /v1/check": "admin",
    "GET /v1/queues/{queue}/buried": "take admin",
    "GET /v1/queues/{queue}/buried/reasons": "take admin",
    "GET /v1/queues/{queue}/holders": "admin",
    "GET /v1/consumers": "",
    "POST /v1/consumers/close": "admin",
    "GET /v1/topics": "",
    "GET /v1/topics/{topic}": FIGURES,
    "PUT /v1/topics/{topic}/queues/{queue}": "admin",
    "DELETE /v1/topics/{topic}/queues/{queue}": "admin",
    "POST /v1/sessions": "",
    "PUT /v1/sessions/{session}": "",
    "DELETE /v1/sessions/{session}": "",
    "GET /v1/locks": "",
    "GET /v1/locks/{lock}": "lock",
    **{f"POST /v1/locks/{{lock}}/{how}": "lock" for how in ("acquire", "renew", "release")},
    "GET /v1/cluster": "",
    **{
        f"POST /v1/cluster/{how}": "admin"
        for how in ("transfer", "join", "leave", "switchover", "recover", "confirm", "backups")
    },
    "GET /v1/cluster/discarded": "admin",
    "GET /v1/cluster/backups/{backup}": "admin",
    "DELETE /v1/cluster/backups/{backup}": "admin",
}
"""
Which rights are good for each; ``nobody``: it needs no user, empty: any user; ``a page``: no user,
but only a page of the console may ask (``unit/server/console/test_login``); ``two rights``: not one
alone.
"""


def _named(path: str) -> str:
    """What a route's path names, in the requests that are made of it here."""
    if "{account}" in path:
        return "p/a"
    if "{queue}" in path or "{topic}" in path or "{lock}" in path:
        return "mail"
    return "{provider}" if "{provider}" in path else "daily" if "{name}" in path else ""


@pytest.mark.parametrize("right", [*RIGHTS, ""])
async def test_every_route_with_one_right_alone_and_with_none(right: str) -> None:
    async with site(users=True, rights=(right,) if right else ()) as subject:
        runner = http_runner_of(subject.server)
        router = runner.app.router
        there = {f"{route.method} {route.resource.canonical}" for route in router.routes()}
        assert {one for one in there if not one.startswith("HEAD ")} == set(ROUTES), (
            "a route that is not in the table"
        )
        for what in sorted(there):
            method, _, path = what.partition(" ")
            words = ROUTES[what.replace("HEAD", "GET")].split()
            if words == ["a", "page"]:
                assert (await subject.ask(method, path))[0] == 403
                continue
            if words == ["two", "rights"]:
                assert (await subject.ask(method, path, headers=ALICE))[0] == 403
                continue
            path = path.replace("{provider}/{account}", "p/a").replace("{name}", "daily")
            path = re.sub(r"\{(queue|topic|lock)\}", "mail", path)
            path = re.sub(r"\{(id|session|backup)\}", "a", path)
            before = [list(room.calls) for room in (subject.door.tokens, subject.door.schedules)]
            assert ((await subject.ask(method, path))[0] == 401) is (words != ["nobody"]), what
            status, body = await subject.ask(method, path, headers=ALICE)
            denied = bool(words) and words != ["nobody"] and right not in words
            assert (status == 403) is denied, (what, status)
            if denied and method != "HEAD":
                named = _named(what.partition(" ")[2])
                needs = " or ".join(f"{word}:{named}" if named else word for word in words)
                assert (
                    f"needs the right {needs}, which the user admin does not have"
                    in body["message"]
                )
            if denied:
                assert [
                    list(room.calls) for room in (subject.door.tokens, subject.door.schedules)
                ] == before


async def test_the_metrics_show_what_the_user_may_see() -> None:
    async with site(users=True, rights=("stats:mails.*",)) as subject:

        async def names() -> list[str]:
            return ["mails.a", "other"]

        subject.door.queues.catalog.names = names
        status, text = await subject.ask("GET", "/metrics", headers=ALICE)
        assert status == 200
        assert 'queue="mails.a"' in text
        assert "other" not in text
        assert "tidewarden_tokens" not in text
        assert (await subject.ask("GET", "/v1/status", headers=ALICE))[0] == 200
        status, text = await subject.ask("GET", "/nowhere", headers=ALICE)
        assert status == 404
        assert "There is nothing at /nowhere; there are /, /console, /" in str(text)
        assert ", /v1/tokens, /v1/topics, /v1/whoami." in str(text)


@pytest.mark.parametrize(("rights", "seen"), [(("stats",), True), (("stats:a*", "put"), False)])
async def test_who_sees_all_figures_alone_sees_those_of_users(
    rights: tuple[str, ...], seen: bool
) -> None:
    parts = {"resp": lambda: {"connections": 1, "denied_total": {"mallory": 5}}}
    async with site(users=True, rights=rights, stats=parts) as subject:
        status, text = await subject.ask("GET", "/metrics", headers=ALICE)
        assert (status, "mallory" in text) == (200, seen)
        assert "tidewarden_resp_connections 1.0" in text
