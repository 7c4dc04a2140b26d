"""
A new user's first file: ten accounts of two providers, a line wrong, a grant revoked, a provider
down; and what is told of each.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.cluster.harness import ADMIN, CALM, Node, cluster, until
from support.cluster.processes import free_base_port
from support.doors.command_line import app
from support.providers.authorization_servers import AuthorizationServer
from support.providers.provider_settings import section
from typer.testing import CliRunner, Result

from tidewarden.histograms import KINDS
from tidewarden.server.http.metrics import HELP
from tidewarden.tokens.accounts.account_record import parse_troubles

pytestmark = pytest.mark.timeout(400)
NAMES = ("ada", "bob", "cyd", "dan", "eve")


@dataclass
class Trial:
    """The cluster, who can be asked, and the file."""

    node: Node
    url: str
    shop: AuthorizationServer
    bank_port: int
    file: Path
    store: Any

    def run(self, *words: str) -> Result:
        """``tidewarden token …`` as on a wide terminal."""
        environ = {"TIDEWARDEN_URL": self.url, "COLUMNS": "200"}
        return CliRunner().invoke(app, ("token", *words), env=environ)

    def of(self, account: str) -> dict[str, Any]:
        """What HTTP tells of an account."""
        return dict(self.node.http(f"/v1/accounts/{account}").json())

    def providers(self) -> dict[str, dict[str, Any]]:
        """What HTTP tells of the providers."""
        return {one["provider"]: one for one in self.node.http("/v1/providers").json()["providers"]}

    def logged(self, text: str) -> list[str]:
        return [line for line in self.node.messages() if text in line]


def no_secrets(trial: Trial, *texts: str) -> None:
    """No refresh token is in any of it, nor in the log."""
    for text in (*texts, *trial.node.messages()):
        assert not [seed for _, seed in trial.shop.seeds if seed in text]


@pytest.fixture(scope="module")
def trial(
    request: pytest.FixtureRequest,
    dot: Callable[..., AuthorizationServer],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Trial]:
    folder = tmp_path_factory.mktemp("trial")
    shop, bank_port = dot(accounts=len(NAMES), life=600), free_base_port()
    bank = f"http://127.0.0.1:{bank_port}/token"
    extra = section("shop", shop) + section("bank", shop, bank)
    rows = [("account", "refresh_token")]
    rows += [
        (f"shop/{name}@example.com", token)
        for name, (_, token) in zip(NAMES, shop.seeds, strict=True)
    ]
    rows += [(f"bank/{name}@example.com", f"first-{name}") for name in NAMES]
    lines = [",".join(row) for row in rows]
    lines[4] = "shop/dan@example.com"  # Cut off.
    file = folder / "accounts.csv"
    file.write_text("\n".join(lines) + "\n")
    revoke(shop, shop.seeds[NAMES.index("cyd")][1])
    with cluster(request, folder / "cluster", nodes=1, extra=CALM + extra) as made:
        node = made.leader()
        url = f"redis://{ADMIN}:{made.secret}@{node.host}:{node.base_port}"
        yield Trial(node, url, shop, bank_port, file, made.valkey)


def revoke(server: AuthorizationServer, token: str) -> None:
    form = {"client_id": server.client_id, "client_secret": server.client_secret, "token": token}
    with httpx.Client(trust_env=False, verify=False) as client:
        client.post(
            server.token_url.replace("/token/", "/revoke_token/"), data=form
        ).raise_for_status()


def die(trial: Trial, account: str) -> None:
    """
    Have an account that was refused refused once more, an hour later: two refusals count, and they
    were so long ago.
    """
    with trial.store.client() as store:
        provider, _, name = account.partition("/")
        (key,) = [
            key
            for key in store.scan_iter(f"*_tokens:{provider}:*:account_troubles")
            if store.hexists(key, name)
        ]
        troubles = parse_troubles(store.hget(key, name))
        assert troubles is not None
        if troubles.dead:
            return
        assert troubles.refusals == 1
        troubles.refusals = 2
        troubles.refused_ms -= 3_600_000
        troubles.confirmed_ms = troubles.refused_ms + 600_000
        store.hset(key, name, troubles.pack())
    assert trial.run("refresh", account).stdout.startswith(f"{account} is asked for.")
    until(lambda: trial.of(account)["state"] == "dead", what="it is dead")


@pytest.fixture(scope="module")
def imported(trial: Trial) -> Result:
    """What the first import says."""
    return trial.run("import", str(trial.file))


def test_the_wrong_line_is_named_and_the_others_came_in(trial: Trial, imported: Result) -> None:
    assert imported.exit_code == 1
    assert imported.stdout == "9 accounts: 9 new, 0 with a new grant, 0 unchanged; 1 bad line\n"
    assert imported.stderr.startswith(
        "line 5: refresh_token is missing: 1 field where the header has 2 (account,"
        " refresh_token)\n"
    )
    assert "import the file again: what is there already stays" in imported.stderr
    # The good ones are fresh, and served.
    until(lambda: trial.providers()["shop"]["fresh"] >= 3, what="the shop's accounts are fresh")
    token = trial.node.http("/v1/tokens/shop/ada@example.com").json()
    assert (token["state"], trial.run("get", "shop/ada@example.com").stdout) == (
        "fresh",
        f"{token['access_token']}\n",
    )
    no_secrets(trial, imported.output)


@pytest.mark.usefixtures("imported")
def test_the_revoked_one_is_dead_since_when_why_and_what_can_be_done(trial: Trial) -> None:
    until(
        lambda: trial.of("shop/cyd@example.com")["state"] == "failing",
        what="the revoked one is refused",
    )
    refused = trial.of("shop/cyd@example.com")
    assert (refused["error"], refused["tries"]) == ("invalid_grant", 1)
    assert refused["next_ms"] > refused["since_ms"] + 500_000
    assert "asked again, minutes to an hour apart, before it is given up" in refused["advice"]
    # To ask by hand shows the answer; a minute's refusals are one as far as giving up goes.
    assert "is asked for" in trial.run("refresh", "shop/cyd@example.com").stdout
    until(lambda: trial.of("shop/cyd@example.com")["tries"] == 2, what="it is refused again")
    assert trial.of("shop/cyd@example.com")["state"] == "failing"
    die(trial, "shop/cyd@example.com")
    dead = trial.of("shop/cyd@example.com")
    assert dead["since_ms"] >= refused["since_ms"]
    assert (dead["next_ms"], dead["message"]) == (0, "HTTP 400 invalid_grant")
    assert "consent again" in dead["advice"]
    shown = trial.run("show", "shop/cyd@example.com").stdout
    for words in (
        "dead since 20",
        "HTTP 400 invalid_grant",
        "none by itself",
        "provider      answers",
        "consent again",
    ):
        assert words in shown
    answer = trial.node.http("/v1/tokens/shop/cyd@example.com")
    assert (answer.status_code, answer.json()["error"]) == (404, "NOTFOUND")
    assert (
        "is dead (invalid_grant: HTTP 400 invalid_grant) and has no living token; put a new grant"
        in answer.text
    )
    listed = trial.run("list", "--state", "dead", "--json")
    assert [one["account"] for one in json.loads(listed.stdout)["accounts"]] == [
        "shop/cyd@example.com"
    ]
    assert trial.logged("shop/cyd@example.com is refused: HTTP 400 invalid_grant; asked again in 1")
    assert trial.logged(
        "shop/cyd@example.com is dead: HTTP 400 invalid_grant; its owner has to consent again"
    )
    assert (
        'tidewarden_tokens_accounts{kind="dead",provider="shop"} 1.0'
        in trial.node.http("/metrics").text
    )
    no_secrets(trial, shown, answer.text)


@pytest.mark.usefixtures("imported")
def test_the_provider_that_is_down_is_told_since_when_why_and_when_it_is_tried_next(
    trial: Trial,
) -> None:

    def silent() -> dict[str, Any] | None:
        found = trial.providers()["bank"]
        told = found["state"] == "silent" and found["failing"] and found["next_ms"]
        return found if told else None  # The next try has no time while it is under way.

    bank = until(silent, what="the bank is known to be silent")
    assert (bank["dead"], bank["error"]) == (0, "refused")
    assert 0 < bank["since_ms"] < bank["next_ms"]
    assert f"See whether http://127.0.0.1:{trial.bank_port} is up" in bank["advice"]
    stats = trial.run("stats").stdout
    assert [line.split()[:2] for line in stats.splitlines() if " silent " in line] == [
        ["bank", "5"]
    ]
    assert "bank: no connection: Connection refused. See whether http" in stats

    def told_alike() -> tuple[Result, str] | None:
        """All five fail, or those that were tried before the others had to wait for the bank."""
        tried = trial.providers()["bank"]["failing"]
        listed = trial.run("list", "--provider", "bank", "--state", "failing")
        series = trial.node.http("/metrics").text
        alike = (
            listed.stdout.count("no connection: Connection refused") == tried
            and f"{tried} of bank failing: See whether http://127.0.0.1:{trial.bank_port} is up"
            in listed.stderr
            and f'tidewarden_tokens_accounts{{kind="failing",provider="bank"}} {tried}.0' in series
        )
        return (listed, series) if alike else None  # Else another was tried meanwhile.

    listed, series = until(told_alike, what="the list and the figures tell of as many that fail")
    assert (
        len(trial.logged("bank does not answer: no connection: Connection refused. See whether"))
        == 1
    )
    failing = json.loads(trial.run("list", "--state", "failing", "--json").stdout)["accounts"]
    account = next(one["account"] for one in failing if one["account"].startswith("bank/"))
    answer = trial.node.http(f"/v1/tokens/{account}")
    assert (answer.status_code, answer.json()["error"]) == (504, "TIMEOUT")
    assert (
        "its refresh fails: refused (no connection: Connection refused)" in answer.json()["message"]
    )
    described = set(HELP) | {f"tidewarden_{name}" for name in KINDS}
    nowhere = set(re.findall(r"(?m)^# TYPE (\S+)", series)) - described
    assert sorted(nowhere) == [], "each series says what it is"
    assert 'tidewarden_tokens_standing{kind="silent",provider="bank"} 1.0' in series
    no_secrets(trial, stats, listed.output, series)


@pytest.mark.usefixtures("imported")
def test_the_corrected_file_again_changes_nothing_else(trial: Trial) -> None:
    until(lambda: trial.of("shop/cyd@example.com")["tries"], what="the revoked one is refused")
    die(trial, "shop/cyd@example.com")
    lines = trial.file.read_text().splitlines()
    lines[4] += f",{trial.shop.seeds[NAMES.index('dan')][1]}"
    trial.file.write_text("\n".join(lines))
    again = trial.run("import", str(trial.file))
    assert (again.exit_code, again.stdout) == (
        0,
        "10 accounts: 1 new, 0 with a new grant, 9 unchanged (of which 1 dead); 0 bad lines\n",
    )
    until(
        lambda: trial.of("shop/dan@example.com")["state"] == "fresh",
        what="the corrected one is fresh",
    )
    assert trial.shop.stats()["reuse"] == 0
    no_secrets(trial, again.output)
