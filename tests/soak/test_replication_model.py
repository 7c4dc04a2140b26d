"""The model of replicated stores, gone through for long: all short histories, then random ones."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable

import pytest
from support.replication.model import Limits, Model, Rules, State, begun, unfounded
from support.replication.search import Found, breadth_first, walk

SECONDS = float(os.environ.get("MODEL_SECONDS", "300"))
SEED = int(os.environ.get("MODEL_SEED", "1"))
STATES_MAX = int(os.environ.get("MODEL_STATES", "400000"))

WHOLE: dict[str, tuple[State, Limits, Rules]] = {
    "a host dies": (begun(3, 3), Limits(starts=1, deaths=1), Rules()),
    "two votes": (begun(3, 2), Limits(starts=1), Rules()),
    "a store loses its tail": (
        begun(3, 2),
        Limits(versions=2, crashes=1, lossy=1, starts=2),
        Rules(),
    ),
    "a process restarts": (
        begun(3, 2),
        Limits(starts=1, views=1, versions=3, processes=1),
        Rules(),
    ),
    "a late command": (begun(3, 2), Limits(starts=1, views=1, versions=3, late=1), Rules()),
    "founded": (unfounded(3, 2), Limits(writes=2, resorts=True, single=1), Rules()),
    "nodes leave": (begun(3, 3), Limits(views=1, versions=2, changes=2, deaths=1), Rules()),
    "nodes join": (begun(2, 1, 1), Limits(versions=3, changes=2), Rules()),
    "lost folders": (
        begun(2, 2),
        Limits(writes=2, views=3, versions=1, forgets=1, resorts=True, durable=False),
        Rules(),
    ),
}


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("which", WHOLE)
def test_all_short_histories(which: str) -> None:
    """``MODEL_STATES`` says how many states each search goes through at most."""
    start, limits, rules = WHOLE[which]
    found = breadth_first(Model(rules, limits), start, STATES_MAX)
    assert not found.fault, found.told()
    print(f"{which}: {found.states} states, depth {found.depth}, all: {found.whole}")


LONG = Limits(writes=6, views=6, versions=14, crashes=4, starts=6, groups=3, late=1, processes=1)
RESORT = LONG._replace(resorts=True, durable=False)
WAYS: dict[str, tuple[Callable[[random.Random], State], Limits, Rules]] = {
    "crashes": (lambda rng: begun(3, rng.choice((2, 3))), LONG._replace(lossy=1), Rules()),
    "deaths": (
        lambda rng: begun(3, rng.choice((2, 3))),
        LONG._replace(crashes=0, deaths=1),
        Rules(),
    ),
    "forgetful nodes": (
        lambda rng: begun(3, rng.choice((2, 3))),
        LONG._replace(lossy=1),
        Rules(forgetful=True),
    ),
    "five": (lambda rng: begun(5, rng.choice((3, 5))), LONG._replace(lossy=1, deaths=1), Rules()),
    "one to three": (lambda rng: begun(3, 1, 1), LONG._replace(changes=6), Rules()),
    "five to three": (lambda rng: begun(5, rng.choice((3, 5))), LONG._replace(changes=4), Rules()),
    "power cuts, always": (
        lambda rng: begun(3, rng.choice((2, 3))),
        RESORT._replace(boots=4),
        Rules(always=True),
    ),
    "power cuts, everysec": (
        lambda rng: begun(3, rng.choice((2, 3))),
        RESORT._replace(boots=2, lossy=2),
        Rules(),
    ),
    "founded": (
        lambda rng: unfounded(3, rng.randrange(3)),
        LONG._replace(resorts=True, single=1, crashes=1),
        Rules(),
    ),
    "lost folders": (
        lambda rng: begun(3, rng.choice((2, 3))),
        RESORT._replace(forgets=1),
        Rules(),
    ),
}


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("which", WAYS)
def test_long_random_histories(which: str) -> None:
    """``MODEL_SECONDS`` for each kind; ``MODEL_SEED`` is the first seed."""
    start, limits, rules = WAYS[which]
    model, total, until = Model(rules, limits), Found(), time.monotonic() + SECONDS / len(WAYS)
    seed = SEED
    while time.monotonic() < until:
        found = walk(model, start(random.Random(seed)), seed, 300)
        assert not found.fault, f"seed {seed}: {found.told()}"
        total.states += found.states
        total.oks += found.oks
        seed += 1
    assert total.oks, "nothing was answered"
    print(f"{which}: {seed - SEED} walks, {total.states} steps, {total.oks} answers")
