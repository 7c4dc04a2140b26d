"""
How fast a client refreshes while a real authorization server, or what stands before it, says now
and then that it is too fast.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.cluster.judged import LIFE_S, Trial, passed, trial
from support.providers.reverse_proxy import Limit, Rule

pytestmark = pytest.mark.timeout(400)  # the first run may have to install oidc-provider

EACH = 80
NEED = EACH / (LIFE_S * 2 / 3)
"""
Refreshes a second that so many accounts need: each is due when two thirds of its token's life are
over.
"""
LIMIT = 0.8 * NEED


@pytest.mark.soak
async def test_a_rate_stays_at_what_is_answered_well(
    oidc: Callable[..., Any], valkey: Any, tmp_path: Path
) -> None:
    """
    Two minutes: a shorter look shows how fast the machine is. ``unit/tokens/limits/test_judgement``
    plays the like in no time.
    """
    await scene(oidc, valkey, tmp_path, 10, 0.9, 0.07)


async def scene(
    oidc: Callable[..., Any], store: Any, folder: Path, lives: float, least: float, most: float
) -> None:
    """
    Four providers for so many lives of an access token, after one and a half, of whose figures
    nothing is asked.

    Of one provider an answer in a hundred is 429 with Retry-After: 1, which makes nobody late but
    whom it befalls; two bear four fifths of what is done at the fourth, one of which says when to
    come again. The fourth says nothing of the kind, and shows what can be done.
    """
    names = ("calm", "sprinkled", "silent", "telling")
    server = oidc(accounts=EACH * len(names), life=LIFE_S)
    grants = {
        name: server.seeds[EACH * turn : EACH * (turn + 1)] for turn, name in enumerate(names)
    }
    async with trial(server, store, folder, *names, refreshers=16) as made:
        made.proxy.rules["sprinkled"] = [Rule(429, "", {"Retry-After": "1"}, share=0.01)]
        clock = functools.partial(by_the_calm_one, made)
        made.proxy.limits["silent"] = Limit(LIMIT, LIMIT, clock=clock)
        made.proxy.limits["telling"] = Limit(LIMIT, LIMIT, retry_after=1, clock=clock)
        begun = made.proxy.mark()
        for name, seeds in grants.items():  # They fall due one by one.
            for number, seed in enumerate(seeds):
                await made.put(
                    name, [seed], access_token="old", expires_in=LIFE_S * (number + 1) / EACH
                )
        await passed(1.5 * LIFE_S)  # The limit has been met by then.
        steady = made.proxy.mark()
        await passed(lives * LIFE_S)
        ended = made.proxy.mark()
        late = {
            name: made.late(name, [who for who, _ in grants[name]], begun, ended) for name in names
        }
        asked = made.proxy.asked("sprinkled", begun)
        held = {one.account for one in asked if one.status == 429}
        print(
            f"{len(asked)} asked, held {held}, late {late['sprinkled']}; of the calm one"
            f" {late['calm']}"
        )
        found = {name: figures(made, name, steady) for name in ("silent", "telling")}
        print(
            found,
            *(f"{name}, well and 429 by second: {course(made, name, begun)}" for name in found),
            sep="\n",
        )
        assert held
        assert len(late["sprinkled"].keys() - held) <= len(late["calm"])
        well, calm = (made.proxy.answers(name, begun)[200] for name in ("sprinkled", "calm"))
        assert well >= 0.9 * calm
        assert not await made.events("sprinkled")
        for goodput, refused, fewest in found.values():
            assert goodput >= least
            assert refused <= most
            # With lives so short each that is due is urgent, and goes before those that are late:
            # these have a quarter.
            assert fewest >= lives / 5, "each has its turn, however late it is"
        for name, seeds in grants.items():
            await made.check_grants(name, [who for who, _ in seeds])
        for name, seeds in grants.items():
            await made.accepted_again(name, [who for who, _ in seeds[::8]])


def by_the_calm_one(made: Trial, begun: float = 0.0) -> float:
    """
    Seconds by what was refreshed at the calm provider: they pass as the machine gets on, so that a
    limit by them leaves as large a part of what it can do, however slow it is.
    """
    return made.proxy.answers("calm", begun)[200] / NEED


def figures(made: Trial, name: str, begun: float) -> tuple[float, float, int]:
    """
    Share of the limit that was made use of, share of requests that were too many, refreshes of the
    account that had the fewest.
    """
    told, allowed = made.proxy.answers(name, begun), LIMIT * by_the_calm_one(made, begun)
    times = [len(moments) for moments in made.proxy.refreshed(name).values()]
    return told[200] / allowed, told[429] / told.total(), min(times)


def course(made: Trial, name: str, begun: float) -> str:
    """How many were answered well, and 429, in each second."""
    seconds = Counter((int(one.begun - begun), one.status) for one in made.proxy.asked(name, begun))
    return " ".join(
        f"{seconds[at, 200]}+{seconds[at, 429]}" for at in range(max(at for at, _ in seconds) + 1)
    )
