"""A node that keeps tokens and refreshes none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.tokens import harness


@pytest.fixture
def still(valkey: Any, tmp_path: Path) -> Any:
    """A node whose refreshers do not run."""
    return harness.node(valkey, tmp_path, harness.provider("http://127.0.0.1:9/"), go=False)
