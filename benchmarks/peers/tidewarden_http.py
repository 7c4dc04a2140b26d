"""Ours over HTTP: the same node, its port base + 1."""

from __future__ import annotations

import dataclasses
from typing import Any

from benchmarks.targets import Target

from .http_connection import HttpConnection
from .tidewarden import QUEUE, TAKE_WAIT_MS

PUT, TAKE, ACK = range(3)


class TidewardenHttp(HttpConnection):
    """POST …/tasks, …/take, …/ack, the payload as text."""

    asked = PUT

    def put(self, payload: bytes | None = None, delay_ms: int = 0) -> None:
        self.asked = PUT
        text = (self.board.payload if payload is None else payload).decode()
        body = {"payload": text} | ({"delay_ms": delay_ms} if delay_ms else {})
        self.ask(f"/v1/queues/{QUEUE}/tasks", body)

    def take(self) -> None:
        self.asked = TAKE
        self.ask(f"/v1/queues/{QUEUE}/take", {"wait_ms": TAKE_WAIT_MS})

    def ack(self, task: Any) -> None:
        self.asked = ACK
        task_id, lease = task
        self.ask(f"/v1/queues/{QUEUE}/tasks/{task_id}/ack", {"lease": lease})

    def answered(self, found: Any) -> None:
        if self.asked == PUT:
            self.was_put()
        elif self.asked == ACK:
            self.was_acked()
        elif found["tasks"]:
            (task,) = found["tasks"]
            self.was_taken((task["id"], task["lease"]), task["payload"].encode())
        else:
            self.take()


def beside(node: Target) -> Target:
    """The HTTP door of a node that is driven over RESP."""
    return dataclasses.replace(
        node, name="http", port=node.port + 1, connection=TidewardenHttp, auth=()
    )


def named(node: Target, name: str) -> Target:
    """The same under another name."""
    return dataclasses.replace(node, name=name)
