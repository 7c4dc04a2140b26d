"""
Whose matter an answer is, at a real authorization server: what befalls some accounts concerns no
others, what befalls all ends none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from support.cluster.judged import LIFE_S, passed, trial
from support.providers.reverse_proxy import Rule, refusal
from support.tokens import harness

pytestmark = pytest.mark.timeout(400)  # the first run may have to install oidc-provider


def names_of(seeds: Iterable[tuple[str, str]]) -> list[str]:
    return [who for who, _ in seeds]


EACH = 66
ODD = {
    "unauthorized_client": refusal("unauthorized_client"),
    "bare_401": Rule(401, "<html><body>Who are you?</body></html>"),
}


async def test_what_a_few_accounts_are_told_of_the_client_is_theirs(
    oidc: Callable[..., Any], valkey: Any, tmp_path: Path
) -> None:
    """
    Three in a hundred are told so for good: no other is held back for a moment, and nobody is told
    that the client is refused. A third provider, with none such, shows what can be done.
    """
    server = oidc(accounts=3 * EACH, life=LIFE_S)
    left = iter(server.seeds)
    grants = {name: list(islice(left, EACH)) for name in (*ODD, "calm")}
    odd = {name: names_of(grants[name][::33]) for name in ODD}
    others = {
        name: [who for who in names_of(seeds) if who not in odd.get(name, ())]
        for name, seeds in grants.items()
    }
    async with trial(server, valkey, tmp_path, *grants, refreshers=16) as made:
        for name, seeds in grants.items():
            if name in ODD:
                made.proxy.rules[name] = [replace(ODD[name], accounts=odd[name])]
            await made.put(name, seeds)
            await made.refreshed(name, others[name])
        begun = made.proxy.mark()
        held = []
        for _ in range(LIFE_S * 5):  # Oftener than any hold is short.
            await passed(0.2)
            held += [name for at in made.sides for name in ODD if at.tokens.metrics()["held"][name]]
        ended = made.proxy.mark()
        late = {name: made.late(name, others[name], begun, ended) for name in grants}
        assert not held
        for name in ODD:
            assert len(late[name]) <= len(late["calm"]), late
            assert not await made.events(name)
            assert set(await made.states(name, odd[name])) == {"failing"}
            await made.check_grants(name, names_of(grants[name]))
        for name in ODD:
            await made.accepted_again(name, names_of(grants[name]))


@pytest.mark.parametrize("kind", ["oidc", "dot"])
async def test_a_refusal_after_an_answer_of_a_gateway_is_not_the_end_of_a_grant(
    kind: str, request: pytest.FixtureRequest, valkey: Any, tmp_path: Path
) -> None:
    """
    A 504 whose request the server never saw, then a refusal that is false: it may be lost, and is
    not given up for it.
    """
    server = request.getfixturevalue(kind)(accounts=1)
    grants = server.seeds
    ((who, _),) = grants
    async with trial(server, valkey, tmp_path, "p") as made:
        made.proxy.rules["p"] = [Rule(504, times=1), refusal("invalid_grant", times=1)]
        await made.put("p", grants)
        await harness.eventually(lambda: made.proxy.answers("p")[400] == 1)
        await harness.in_state(made.sides[0], "failing", f"p/{who}", 10)
        assert made.proxy.answers("p") == {504: 1, 400: 1}
        await made.check_grants("p", [who])
        await made.accepted_again("p", [who])
        assert set(await made.states("p")) <= {"fresh", "expiring"}
