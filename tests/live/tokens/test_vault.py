"""
The vault of a whole cluster: its key is changed while a node is killed, and no secret is anywhere
in the clear.
"""

from __future__ import annotations

import base64
import json
import re
import secrets
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from support.cluster.harness import CLUSTER, Cluster, Node, cluster, until
from support.doors.command_line import app
from support.doors.http_app import served_in_thread
from support.providers.provider_settings import section
from support.providers.scripted_provider import ScriptedProvider, scripted_provider
from typer.testing import CliRunner

from tidewarden.config.key_file import prepend_key

ACCOUNTS = 400
# Where all that fail are taken for the client's trouble, no account's failure is told.
FAILING = (
    "account.failing",
    "provider.breaker_open",
    "provider.quarantine_begun",
    "provider.silent",
)
MARK = "s3cr3t" + secrets.token_hex(4)
HOOK = base64.b64encode(secrets.token_bytes(32)).decode()


def first(kind: str, account: str) -> str:
    """The first token of an account, which carries the mark; ``kind`` is at or rt."""
    return f"{MARK}{kind}AAAABBBBCCCC-{account}.0"


async def quoting(
    request: web.Request, provider: ScriptedProvider, token: str
) -> web.StreamResponse:
    """Refuse accounts called bad, html and down, and quote the secrets that came."""
    account = token.partition("-")[2]
    if account.startswith("bad"):
        refusal = {"error": "invalid_grant", "error_description": f"{token} is no token"}
        return web.json_response(refusal, status=400)
    if account.startswith("html"):
        secret = request.headers["Authorization"]
        page = f"<p>your token {token} is fine, your secret {secret}, too</p>"
        return web.Response(text=page, content_type="text/html")
    if account.startswith("down"):
        return web.json_response({"error": token, "message": token}, status=503)
    return provider.rotate(token)


@pytest.fixture(scope="module")
def provider() -> Iterator[ScriptedProvider]:
    with served_in_thread(scripted_provider(script=quoting)) as server:
        yield server


@pytest.fixture(scope="module")
def nodes(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    provider: ScriptedProvider,
) -> Iterator[Cluster]:
    secret = f"{MARK}-client-secret"
    extra = section("p", provider, rotation="none", client_secret=secret) + (
        f'[events]\nfailing_s = 1\n[webhooks.ops]\nurl = "http://127.0.0.1:9/{MARK}"\n'
        f'secret = "whsec_{HOOK}"\n'
    )
    with cluster(
        request, tmp_path_factory.mktemp("vault"), nodes=2, extra=extra, log__level='"debug"'
    ) as made:
        yield made


def rotation(nodes: Cluster) -> dict[str, Any]:
    with nodes.valkey.client() as store:
        return dict(json.loads(store.hget(f"{{{CLUSTER}}}:vault", "rotation") or b"{}"))


def readable(node: Node) -> None:
    with node.client() as client, client.pipeline(transaction=False) as pipe:
        for i in range(ACCOUNTS):
            pipe.execute_command("T.GET", f"p/a{i}")
        answers = pipe.execute()
    assert [answer[0] for answer in answers] == [first("at", f"a{i}") for i in range(ACCOUNTS)]


def killed_at_it(nodes: Cluster) -> Node:
    """
    Whoever works at a rotation dies in the middle of it; where it was done before that was seen, at
    another one.
    """

    def far() -> dict[str, Any]:
        now = rotation(nodes)
        return (
            now
            if (now["state"] == "sealing" and now["seen"] > 20) or now["state"] == "done"
            else {}
        )

    for _ in range(10):
        next(iter(nodes.nodes.values())).say("V.ROTATE")
        worker = nodes.nodes[until(far, every_s=0.001)["node"]]
        worker.kill()
        if rotation(nodes)["state"] == "sealing":
            return worker
        worker.start()
        until(worker.ready)
    pytest.fail("each rotation was done before its node was killed")


def test_the_key_is_changed_while_a_node_is_killed(nodes: Cluster) -> None:
    one, two = nodes.nodes.values()
    with one.client() as client, client.pipeline(transaction=False) as pipe:
        for i in range(ACCOUNTS):
            tokens = {
                f"{kind}_token": first(kind[0] + "t", f"a{i}") for kind in ("access", "refresh")
            }
            pipe.execute_command("T.PUT", f"p/a{i}", json.dumps({**tokens, "expires_in": 7200}))
        pipe.execute()
    path = nodes.folder / "vault.key"
    made = prepend_key(path).hex()
    worker = killed_at_it(nodes)
    other = two if worker is one else one
    readable(other)
    worker.start()
    found = until(lambda: (now := rotation(nodes))["state"] == "done" and now)
    assert (found["unreadable"], found["kek"]) == (0, made)
    assert found["seen"] >= ACCOUNTS
    until(worker.ready)
    # From now on the old key opens nothing, and is nowhere needed: a node starts without it.
    path.write_text(path.read_text().splitlines()[0])
    other.kill()
    other.start()
    until(other.ready)
    for node in (one, two):
        readable(node)


def test_no_secret_is_anywhere(nodes: Cluster, provider: ScriptedProvider, tmp_path: Path) -> None:
    one, two = nodes.nodes.values()
    said: list[Any] = []
    with one.client() as client:
        for kind in ("good", "bad", "html", "down"):
            for i in range(3):
                token = first("rt", f"{kind}{i}")
                said.append(
                    client.execute_command(
                        "T.PUT", f"p/{kind}{i}", json.dumps({"refresh_token": token})
                    )
                )
        for wrong in (
            f'{{"refresh_token": "{MARK}AAAABBBBCCCC',
            f'{{"refresh_token": "r", "x{MARK}": 1}}',
        ):
            with pytest.raises(Exception, match="BADARG") as caught:
                client.execute_command("T.PUT", "p/wrong", wrong)
            # a field's name is no secret
            assert MARK not in str(caught.value) or f"x{MARK}" in str(caught.value)
    until(
        lambda: all(
            provider.requests[first("rt", f"{kind}{i}")]
            for kind in ("bad", "html", "down")
            for i in range(3)
        )
    )
    token = two.say("T.GET", "p/good0", "WAIT", 10_000)
    assert token[0] == f"secret-access-{first('rt', 'good0').removesuffix('.0')}-1"
    (tmp_path / "transfer.key").write_bytes(secrets.token_bytes(32))
    words = ("--key-file", str(tmp_path / "transfer.key"), "--url", _url(one))
    sealed = tmp_path / "sealed"
    for verb in ("export", "import"):
        done = CliRunner().invoke(app, ("token", verb, str(sealed), *words))
        assert done.exit_code == 0, done.output
        said.append(done.output)
    assert f"0 accounts stored, {ACCOUNTS + 12} were there, 0 bad lines" in said[-1]
    for node in (one, two):
        said += [
            node.say(*verb.split())
            for verb in ("R.STATUS", "V.STATUS", "T.LIST", "T.STATS", "INFO", "CLIENT LIST")
        ]
        said += [
            node.http(path).text
            for path in ("/metrics", "/v1/status", "/v1/tokens", "/v1/tokens/p/bad0")
        ]
    said += [told(two)]
    until(
        lambda: re.search("webhook ops does not take events .*: event evt_", one.log() + two.log())
    )
    with nodes.valkey.client() as store:
        said += [store.execute_command("SLOWLOG", "GET", 1000), store.execute_command("INFO")]
        store.bgrewriteaof()
        until(lambda: not store.info("persistence")["aof_rewrite_in_progress"])
    time.sleep(0.2)  # the logs are written by threads
    for node in (one, two):
        limits = Path(f"/proc/{node.pid}/limits").read_text().splitlines()
        assert [line.split()[4] for line in limits if line.startswith("Max core file size")] == [
            "0"
        ]
    keys = [base64.b64decode(line) for line in (nodes.folder / "vault.key").read_text().split()]
    wanted = [
        MARK.encode(),
        HOOK.encode(),
        *keys,
        *(base64.b64encode(key) for key in keys),
        *(key.hex().encode() for key in keys),
    ]
    places = {
        str(path): path.read_bytes()
        for path in (*nodes.folder.rglob("*"), sealed)
        if path.is_file()
    }
    assert any(path.endswith("tokens.journal") for path in places)
    assert any(".aof" in path for path in places)
    for path, content in places.items():
        if not path.endswith(("node.toml", "vault.key")):
            assert not [secret for secret in wanted if secret in content], path
    assert MARK not in repr(said)


def told(node: Node) -> str:
    """What the node's stream has, to the first event of an account, or its provider, that fails."""
    text = ""
    with node._http.stream(
        "GET", f"http://127.0.0.1:{node.base_port + 1}/v1/events?after=0", timeout=60
    ) as response:
        for line in response.iter_lines():
            text += line + "\n"
            if line.startswith("data: ") and any(f"event: {kind}" in text for kind in FAILING):
                return text
    pytest.fail(f"no event of an account that fails: {text}")


def _url(node: Node) -> str:
    return f"redis://admin:{node.secret}@127.0.0.1:{node.base_port}"
