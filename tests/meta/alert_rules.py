"""
Makes the rules for Prometheus of the console's conditions.

``python -m tests.meta.alert_rules`` writes examples/prometheus/alerts.yml anew;
unit/server/console/test_alerts says whether it has to be.
"""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

from tidewarden.server.console.alerts import CONDITIONS, Condition

FILE = Path(__file__).parents[2] / "examples" / "prometheus" / "alerts.yml"
HEAD = """\
# Alerts for Prometheus: `rule_files: [alerts.yml]` in prometheus.yml, with a job called tidewarden
# (docs/operations.md). Figures of queues and accounts are those of the whole cluster and the same
# at every node, hence max; a node's own figures carry its instance.
# Made of tidewarden/server/console/alerts.py by `python -m tests.meta.alert_rules`.
groups:
  - name: tidewarden
    rules:
"""


class Label(str):
    """Stands for a label in a rule's texts, whatever its format."""

    __slots__ = ()

    def __format__(self, format_spec: str) -> str:
        return str(self)


LABELS = {
    "node": "{{ $labels.instance }}",
    "user": "{{ $labels.kind }}",
    "standing": "{{ $labels.kind }}",
    "growth": "",
    "value": '{{ printf "%.0f" $value }}',
} | {name: f"{{{{ $labels.{name} }}}}" for name in ("kind", "provider", "queue", "webhook")}


def rules() -> str:
    """The whole file."""
    return HEAD + "".join(_rule(one) for one in CONDITIONS)


def _rule(one: Condition) -> str:
    words = {name: Label(text) for name, text in LABELS.items()}
    summary = f"{one.summary} {one.action}".format_map(words)
    whole, part = divmod(one.for_s, 60)
    lasting = f"        for: {part}s\n" if part else f"        for: {whole}m\n"
    return (
        f"      - alert: {one.name}\n{_folded('expr', one.trigger.expr, 8)}{lasting if one.for_s else ''}"
        f"        annotations:\n{_folded('summary', summary, 10)}"
    )


def _folded(key: str, text: str, indent: int) -> str:
    """A key of a map with a text that is wrapped as YAML folds it, but within no label."""
    before = " " * (indent + 2)
    if len(plain := f"{' ' * indent}{key}: {text}\n") <= 101 and ": " not in text:
        return plain
    lines = textwrap.wrap(
        re.sub(r"{{.*?}}", lambda label: label[0].replace(" ", "\0"), text),
        100,
        initial_indent=before,
        subsequent_indent=before,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return f"{' ' * indent}{key}: >-\n" + "".join(f"{line}\n" for line in lines).replace("\0", " ")


if __name__ == "__main__":
    FILE.write_text(rules(), "utf-8")
