"""What the console's plots make of the figures of a history."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tidewarden.server.console.history import STEP_MS
from tidewarden.server.console.recorder import COUNTERS, GAUGES, OWN_COUNTERS, OWN_GAUGES

STATIC = Path(__file__).parents[4] / "tidewarden/server/console/static"
needs_node = pytest.mark.skipif(not shutil.which("node"), reason="node is not here")


def plots(series: dict[str, list[float | None]]) -> list[dict[str, Any]]:
    """The specs of the plots, as the console's own code makes them."""
    code = (
        f"import {{ figures }} from {json.dumps((STATIC / 'pages/history.js').as_uri())};"
        f"console.log(JSON.stringify(figures({json.dumps({'step_ms': STEP_MS, 'from_ms': 0, 'series': series})})))"
    )
    argv = ["node", "--input-type=module", "--no-warnings", "-e", code]
    made = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=60)
    found: list[dict[str, Any]] = json.loads(made.stdout)
    return found


@needs_node
@pytest.mark.thorough
def test_what_is_counted_a_step_is_shown_a_second() -> None:
    found = plots({name: [100.0, None, 5.0] for name in (*COUNTERS, *OWN_COUNTERS, *GAUGES)})
    shown = {
        one["label"]: (plot["unit"], one["values"]) for plot in found for one in plot["series"]
    }
    for label in ("puts", "takes", "acks", "fails", "expired", "refreshed", "requests"):
        assert shown[label] == ("/s", [10, None, 0.5]), label
    for label in ("ready", "delayed", "leased", "buried"):
        assert shown[label] == ("", [100, None, 5]), label
    assert shown["oldest ready task"] == ("ms", [100, None, 5])


@needs_node
@pytest.mark.thorough
def test_every_figure_of_a_history_is_in_a_plot() -> None:
    names = (*COUNTERS, *GAUGES, *OWN_COUNTERS, *OWN_GAUGES)
    found = plots({name: [1.0] for name in names})
    assert sum(len(plot["series"]) for plot in found) == len(names)
