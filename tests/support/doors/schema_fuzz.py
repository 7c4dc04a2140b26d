"""Runs schemathesis with all its checks against a node that describes itself."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import schemathesis
import urllib3.util.connection
from schemathesis.config import SchemathesisConfig
from schemathesis.engine import Status, events, from_schema

ENDLESS = ("/v1/events", "/v1/tap")
"""No check waits for the end of their answers."""
SLASHED = ("/console/", "/refresh", "/connect", "/device", "/why", "/v1/schedules/{name}/")
"""
What ends or begins so is also the path of another route, whose last name may have slashes: other
methods than the operation's may be served there.
"""
METHODS = ("unsupported_method", "allow_header_conformance")
WAITS = {"wait_ms": 10, "wait": 0.01}
"""The longest waits that are sent: else it would be the waits that take the time."""


@schemathesis.hook
def before_call(context: Any, case: Any, kwargs: Any) -> None:
    """Wait less."""
    for part in (case.query, *(case.body if isinstance(case.body, list) else [case.body])):
        for name, most in WAITS.items():
            value = part.get(name) if isinstance(part, dict) else None
            if isinstance(value, int | float) and not isinstance(value, bool) and value > most:
                part[name] = most


@contextmanager
def from_many_hosts() -> Iterator[None]:
    """
    Have each connection come from a loopback address of its own.

    A wrong secret would hold up the next one of the same host for seconds.
    """
    hosts = itertools.count(2)
    connect = urllib3.util.connection.create_connection

    def from_next(
        address: Any, timeout: Any = None, source_address: Any = None, **more: Any
    ) -> Any:
        number = next(hosts)
        source = f"127.1.{number // 250 % 250}.{number % 250 + 1}", 0
        return connect(address, timeout, source, **more)

    with mock.patch("urllib3.util.connection.create_connection", from_next):
        yield


def failures(
    document: dict[str, Any],
    url: str,
    bearer: dict[str, str],
    *,
    examples: int,
    seed: int,
    max_time_s: int | None = None,
) -> tuple[int, dict[str, str]]:
    """
    How many requests were sent, and what is wrong, by operation and check, each with a request.

    ``examples``: of each operation; ``max_time_s``: when to stop; None: after all.
    """
    config = SchemathesisConfig.from_dict(
        {
            "seed": seed,
            "headers": bearer,
            "continue-on-failure": True,
            "request-timeout": 30,
            # what excludes what, and limits of the configuration, are no part of a schema
            "checks": {
                "positive_data_acceptance": {
                    "expected-statuses": ["2xx", "3xx", "4xx", "503", "504", "507"]
                },
                "not_a_server_error": {
                    "expected-statuses": ["2xx", "3xx", "4xx", "503", "504", "507"]
                },
            },
            "generation": {"max-examples": examples, "no-shrink": True, "database": "none"},
        }
    )
    schema: Any = schemathesis.openapi.from_dict(document, config=config)
    schema.config.update(base_url=url)
    if max_time_s is not None:
        schema.config.max_time = max_time_s
    for path in ENDLESS:
        schema = schema.exclude(path=path)
    found: dict[str, str] = {}
    cases = 0
    with from_many_hosts():
        for event in from_schema(schema).execute():
            if isinstance(event, events.NonFatalError | events.FatalError):
                found[f"error {event}"] = str(event)
            if not isinstance(event, events.ScenarioFinished):
                continue
            cases += len(event.recorder.cases)
            for failed in _failed(event):
                found.setdefault(*failed)
    return cases, found


def _failed(event: Any) -> Iterator[tuple[str, str]]:
    for nodes in event.recorder.checks.values():
        for node in nodes:
            if node.status != Status.FAILURE or node.failure_info is None:
                continue
            if node.name in METHODS and any(part in event.label for part in SLASHED):
                continue
            failure = node.failure_info.failure
            what = f"{event.label}: {node.name}: {failure.title}"
            yield what, f"{failure.message}\n{node.failure_info.code_sample}"
