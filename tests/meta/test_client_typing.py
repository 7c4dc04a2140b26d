"""The public types: mypy reads ``tests/meta/typing/client.py``, the examples too."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import tidewarden.client

ROOT = Path(__file__).parents[2]


@pytest.mark.thorough
def test_mypy_agrees() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--warn-unused-ignores", "tests/meta/typing/client.py", "examples"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_package_says_that_it_is_typed_and_what_it_exports() -> None:
    assert (ROOT / "tidewarden" / "py.typed").exists()
    assert sorted(tidewarden.client.__all__) == tidewarden.client.__all__
    assert all(getattr(tidewarden.client, name).__doc__ for name in tidewarden.client.__all__)
