"""Schemathesis at /v1/openapi.json with many examples of each operation, in several seeds."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support.doors.described_node import described
from support.doors.schema_fuzz import failures

pytestmark = pytest.mark.timeout(3600)
SEED = int(os.environ.get("SOAK_SEED", "1"))
SECONDS = int(os.environ.get("SOAK_SECONDS", "600"))
EXAMPLES = 200


@pytest.mark.parametrize("seed", range(SEED, SEED + 2))
def test_nothing_is_found(request: pytest.FixtureRequest, tmp_path: Path, seed: int) -> None:
    with described(request, tmp_path) as made:
        cases, found = failures(
            made.document, made.url, made.bearer, examples=EXAMPLES, seed=seed, max_time_s=SECONDS
        )
        print(f"{cases} requests of seed {seed}")
        assert not found, "\n\n".join(f"{what}\n{shown}" for what, shown in found.items())
        with made.user() as client:
            assert client.get("/health/live").json()["ok"]
