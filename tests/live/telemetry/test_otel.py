"""Spans and figures reach a receiver: of a put, of its handlers, of refreshes, of a node."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import pytest
from support.cluster.harness import ADMIN, Cluster, cluster, until
from support.providers.authorization_servers import AuthorizationServer
from support.providers.provider_settings import section
from support.telemetry.otlp_receiver import Receiver, attributes, receiver

from tidewarden.client import Client

pytestmark = pytest.mark.timeout(400)

PROGRAM = """
import sys
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from tidewarden.client import AsyncTask, Client, Task, Worker

url, endpoint = sys.argv[1:]
provider = TracerProvider(resource=Resource.create({"service.name": "shop"}))
provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint + "/v1/traces")))
trace.set_tracer_provider(provider)
tracer = trace.get_tracer("shop")
left = {"async", "thread"}
worker = Worker(url, concurrency=2, backoff_ms=1)

def ended(name):
    left.discard(name)
    if not left:
        worker.stop()

@worker.task("async")
async def in_loop(task: AsyncTask) -> None:
    if task.attempt == 1:
        raise ValueError("the first time")
    with tracer.start_as_current_span("inside the loop"):
        ended("async")

@worker.task("thread")
def in_thread(task: Task) -> None:
    with tracer.start_as_current_span("inside the thread"):
        ended("thread")

with Client(url) as client, tracer.start_as_current_span("order"):
    client.queue("async").put("x", id="a")
    client.queue("thread").put_many(["x"])
code = worker.run()
provider.shutdown()
sys.exit(code)
"""


@dataclass
class Traced:
    """A cluster that sends what it does to a receiver."""

    cluster: Cluster
    got: Receiver
    url: str


@pytest.fixture(scope="module")
def traced(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    dot: Callable[..., AuthorizationServer],
) -> Iterator[Traced]:
    provider = dot(accounts=2, life=600)
    with receiver() as got:
        extra = f'[otel]\nendpoint = "{got.url}"\nmetrics_interval_s = 1.0\n' + section(
            "dot", provider, rotation="single_use"
        )
        with cluster(request, tmp_path_factory.mktemp("otel"), nodes=1, extra=extra) as made:
            (node,) = made.nodes.values()
            url = f"redis://{ADMIN}:{quote(made.secret, safe='')}@127.0.0.1:{node.base_port}"
            with Client(url) as client:
                for user, token in (*provider.seeds, ("nobody", "never issued")):
                    client.execute("T.PUT", f"dot/{user}", json.dumps({"refresh_token": token}))
            yield Traced(made, got, url)


def test_a_trace_goes_from_a_put_to_its_handlers(traced: Traced, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, "shop.py", traced.url, traced.got.url],
        cwd=tmp_path,
        timeout=120,
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    got = traced.got
    (order,) = got.named("order")
    (put,), (put_many,) = got.named("put async"), got.named("put thread")
    assert {put.trace_id, put_many.trace_id} == {order.trace_id}
    assert put.parent_span_id == order.span_id
    first, second = sorted(got.named("process async"), key=lambda span: span.start_time_unix_nano)
    assert (first.trace_id, first.parent_span_id) == (put.trace_id, put.span_id)
    assert first.status.code == 2  # an error
    assert [event.name for event in first.events] == ["exception"]
    # a retry is a trace of its own that links to the put's
    assert second.trace_id != put.trace_id
    assert [(link.trace_id, link.span_id) for link in second.links] == [(put.trace_id, put.span_id)]
    about = attributes(second.attributes)
    assert about["messaging.destination.name"] == "async"
    assert (about["messaging.message.id"], about["tidewarden.attempt"]) == ("a", 2)
    (handler,) = got.named("process thread")
    (inside,) = got.named("inside the thread")
    assert handler.parent_span_id == put_many.span_id
    assert (inside.trace_id, inside.parent_span_id) == (handler.trace_id, handler.span_id)


async def test_refreshes_are_spans_without_secrets(traced: Traced) -> None:
    def refreshes() -> dict[str, int]:
        return {
            attributes(span.attributes)["tidewarden.account"]: span.status.code
            for span in traced.got.named("refresh dot")
        }

    await asyncio.to_thread(until, lambda: len(refreshes()) == 3, what="three refreshes are told")
    assert refreshes() == {"dot/u0": 0, "dot/u1": 0, "dot/nobody": 2}
    assert "never issued" not in str(traced.got.spans)


async def test_a_nodes_figures_are_sent(traced: Traced) -> None:
    def found() -> bool:
        return {"tidewarden_cluster_term", "tidewarden_resp_connections_total"} <= set(
            traced.got.metrics
        )

    await asyncio.to_thread(until, found, what="figures come")
    term = traced.got.metrics["tidewarden_cluster_term"]
    assert term.gauge.data_points[0].as_double >= 1
    total = traced.got.metrics["tidewarden_resp_connections_total"]
    assert total.sum.is_monotonic
    about = traced.got.resources[-1]
    assert (about["service.name"], about["service.instance.id"]) == ("tidewarden", "n0")


async def test_a_receiver_that_goes_hinders_nobody(
    request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    extra = '[otel]\nendpoint = "http://127.0.0.1:9"\nmetrics_interval_s = 1.0\n'
    with cluster(request, tmp_path, nodes=1, extra=extra) as made:
        (node,) = made.nodes.values()
        said = "the receiver of metrics does not take them"
        await asyncio.to_thread(
            until, lambda: any(said in line for line in node.messages()), what="it is told"
        )
        with Client(
            f"redis://{ADMIN}:{quote(made.secret, safe='')}@127.0.0.1:{node.base_port}"
        ) as client:
            client.queue("q").put("x")
        assert await asyncio.to_thread(node.terminate) == 0
