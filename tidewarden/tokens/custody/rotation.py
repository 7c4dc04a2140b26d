"""
Rotates keys: a new data key, everything sealed anew, and another key-encryption key if asked.

The node that works at it holds a task of the queue ``_vault``, and writes down how far it is: when
that node dies, another goes on from there. At no step is anything unreadable: a key is in the store
before something is sealed under it, each data key is always wrapped by one key-encryption key that
all nodes have, and old data keys are dropped a whole rotation later.
"""

from __future__ import annotations

import logging
from typing import Any

import msgspec

from tidewarden import errors
from tidewarden.clock import Clock, sleep
from tidewarden.config.provider import QUEUE_PREFIX
from tidewarden.queue import Queues, Taken
from tidewarden.queue.task import TaskSpec
from tidewarden.tokens.accounts.account_store import AccountStore
from tidewarden.tokens.vault.key_store import KeyStore, NodeKeys, Rotation
from tidewarden.tokens.vault.provider_records import QUEUE, ProviderRecords
from tidewarden.tokens.vault.vault import FINGERPRINT_KEY_ID, Unsealable, Vault

from .key_sync import provider_of, reseal_row

log = logging.getLogger("tidewarden.tokens")

LEASE_MS = 15_000
TAKE_WAIT_MS = 600_000
ANSWER_S = 10.0  # What a node gets to look at a change; it looks every two seconds.
PAGE = 100
CHUNK = 100  # Pairs of one script: it blocks the store while it runs.
PAUSE_S = 1.0


class Rotator:
    """Starts rotations, and works at the current one when no other node does."""

    def __init__(
        self,
        node: str,
        queues: Queues,
        accounts: AccountStore,
        vault: Vault,
        key_store: KeyStore,
        records: ProviderRecords,
        clock: Clock,
        *,
        answer_s: float = ANSWER_S,
    ) -> None:
        self._node = node
        self._queues = queues
        self._accounts = accounts
        self._vault = vault
        self._key_store = key_store
        self._records = records
        self._clock = clock
        self._answer_s = answer_s
        self._session = queues.open_session(QUEUE)

    async def ask(self, *, force: bool = False) -> dict[str, Any]:
        """
        Begin a rotation to the first key-encryption key that this node's source has now.

        One under way goes on instead.

        ``force``: without the nodes that do not answer. Returns what :meth:`status` does. Raises:
        ConfigError: no keys.
        """
        last = await self._key_store.rotation()
        if last is None or last.ended:
            await self._vault.keyring.read()
            now_ms = self._clock.unix_ms()
            rotation = Rotation(
                node=self._node,
                force=force,
                started_ms=now_ms,
                updated_ms=now_ms,
                kek=self._vault.keyring.ids[0].hex(),
            )
            if last is not None:
                rotation.previous = last.key if last.state == "done" else last.previous
            await self._key_store.note(rotation)
            last = rotation
        await self._queues.put(QUEUE, TaskSpec(id=_task_of(last)))
        return await self.status()

    async def status(self) -> dict[str, Any]:
        """Describe the keys, the nodes and the rotation, without secrets."""
        await self._vault.load()
        wrapped = await self._key_store.keys()
        rotation = await self._key_store.rotation()
        kek = self._vault.kek
        return {
            "kek": kek.hex(),
            "origin": self._vault.keyring.origin,
            "keks": [key_id.hex() for key_id in self._vault.keyring.ids],
            "data_key": self._vault.newest_id,
            "data_keys": sum(key_id != FINGERPRINT_KEY_ID for key_id in wrapped),
            "wrapped_otherwise": sum(one[1:5] != kek for one in wrapped.values()),
            "nodes": {
                name: msgspec.to_builtins(known)
                for name, known in sorted((await self._key_store.nodes()).items())
            },
            "rotation": msgspec.to_builtins(rotation) if rotation else {},
        }

    async def run(self) -> None:
        """Work at rotations, for ever."""
        while True:
            try:
                found = await self._queues.take(
                    self._session, [QUEUE], wait_ms=TAKE_WAIT_MS, lease_ms=LEASE_MS
                )
                for task in found:
                    await self._work(task)
            except errors.NotHeld:
                log.info("another node goes on with the rotation")
            except (errors.Error, OSError) as error:
                log.warning("the rotation waits: %s %s", getattr(error, "code", ""), error)
                await sleep(self._clock, PAUSE_S)

    async def stop(self) -> None:
        """Hand the rotation that this node works at to another node. Call it after :meth:`run`."""
        await self._queues.close_session(self._session)

    async def _work(self, task: Taken) -> None:
        rotation = await self._key_store.rotation()
        if rotation is not None and not rotation.ended and task.id == _task_of(rotation):
            if rotation.node != self._node or rotation.state != "asked":
                log.info(
                    "going on with a rotation of %s, which is %s", rotation.node, rotation.state
                )
            rotation.node = self._node
            try:
                await self._steps(task, rotation)
            except (errors.ConfigError, OSError) as error:  # Of this node; another may do better.
                rotation.message = str(error)[:500]
                await self._key_store.note(rotation)
                await self._queues.release(self._session, QUEUE, task.id, task.lease, delay_ms=5000)
                raise
        await self._queues.ack(self._session, QUEUE, [(task.id, task.lease)])

    async def _steps(self, task: Taken, rotation: Rotation) -> None:
        kek = bytes.fromhex(rotation.kek)
        if rotation.state == "asked":
            await self._begin(rotation, kek)
            await self._note(task, rotation)
        if rotation.state == "wrapping":
            await self._vault.wrap_by(kek)
            await self._vault.add_data_key(rotation.key)
            await self._told(task)
            names = await self._token_queues()
            rotation.total = sum([(await self._accounts.stats(name))["total"] for name in names])
            rotation.state = "sealing"
            await self._note(task, rotation)
        if rotation.state == "sealing":
            await self._seal_all(task, rotation)
            await self._seal_providers(rotation)
            await self._vault.wrap_by(kek)  # A node that was behind may have made one since.
            await self._finish(rotation)
            await self._note(task, rotation)
            await self._key_store.tell()
            log.info(
                "rotation done: %d pairs sealed anew, %d unreadable, %d old data keys dropped",
                rotation.sealed,
                rotation.unreadable,
                rotation.dropped,
            )

    async def _begin(self, rotation: Rotation, kek: bytes) -> None:
        """Check that all nodes can open what the new key wraps, then choose the new data key."""
        rotation.message = ""
        known, silent = await self._told()
        lacking = sorted(name for name, node in known.items() if rotation.kek not in node.keks)
        if kek != self._vault.kek and lacking:
            rotation.message = (
                f"key-encryption key {rotation.kek} is not at {', '.join(lacking)}: give it to"
                " every node"
            )
        elif kek != self._vault.kek and silent and not rotation.force:
            rotation.message = (
                f"{', '.join(silent)} do not answer, and may lack key-encryption key {rotation.kek}"
            )
        if rotation.message:
            rotation.state = "refused"
            log.error("the rotation is refused: %s", rotation.message)
            return
        if rotation.force:
            await self._key_store.forget(silent)
        rotation.key = self._vault.next_id()
        rotation.state = "wrapping"

    async def _told(self, task: Taken | None = None) -> tuple[dict[str, NodeKeys], list[str]]:
        """
        Have every node read the keys again, and wait a while for their answers.

        Returns the reports of the nodes that have read them, and the names of the others.
        """
        change = await self._key_store.tell()
        until = self._clock.monotonic() + self._answer_s
        while True:
            nodes = await self._key_store.nodes()
            silent = sorted(name for name, known in nodes.items() if known.change < change)
            if not silent or self._clock.monotonic() >= until:
                return {name: known for name, known in nodes.items() if name not in silent}, silent
            if task is not None:
                await self._queues.touch(self._session, QUEUE, task.id, task.lease, LEASE_MS)
            await sleep(self._clock, 0.2)

    async def _note(self, task: Taken, rotation: Rotation) -> None:
        """
        Write down how far the rotation is.

        Raises: NotHeld: another node works at it, or at one that was asked for in the same moment.
        """
        await self._queues.touch(self._session, QUEUE, task.id, task.lease, LEASE_MS)
        latest = await self._key_store.rotation()
        if latest is None or _task_of(latest) != task.id:
            await self._queues.ack(self._session, QUEUE, [(task.id, task.lease)])
            raise errors.NotHeld("another rotation was asked for")
        rotation.updated_ms = self._clock.unix_ms()
        await self._key_store.note(rotation)

    async def _token_queues(self) -> list[str]:
        """List the queues of accounts, those of providers that are not configured now included."""
        return sorted(
            name for name in await self._queues.catalog.names() if name.startswith(QUEUE_PREFIX)
        )

    async def _seal_all(self, task: Taken, rotation: Rotation) -> None:
        for queue in await self._token_queues():
            if queue < rotation.queue:
                continue
            if queue > rotation.queue:
                rotation.queue, rotation.shard, rotation.cursor = queue, 0, 0
            shards = await self._accounts.shards(queue)
            while rotation.shard < shards:
                begun = self._clock.monotonic()
                cursor = await self._seal_page(rotation)
                rotation.cursor = cursor
                rotation.shard += cursor == 0
                await self._note(task, rotation)
                # Half of the time for what this is done beside.
                await sleep(self._clock, min(0.1, self._clock.monotonic() - begun))

    async def _seal_providers(self, rotation: Rotation) -> None:
        """
        Seal the providers that were put anew.

        A provider that is put meanwhile is sealed under the newest key.
        """
        sealed, unreadable = await self._records.reseal()
        if sealed:
            log.info("the settings of %d providers that were put are sealed anew", sealed)
        if unreadable:
            log.error("the settings of %d providers do not open and stay as they are", unreadable)
            rotation.unreadable += unreadable

    async def _seal_page(self, rotation: Rotation) -> int:
        queue, shard = rotation.queue, rotation.shard
        cursor, found = await self._accounts.pairs(queue, shard, rotation.cursor, PAGE)
        changes: list[tuple[str, str, bytes, bytes]] = []
        for pair in found:
            for place, raw in (("row", pair.row), ("spare", pair.spare)):
                if not raw:
                    continue
                try:
                    sealed = await reseal_row(self._vault, provider_of(queue), pair.account, raw)
                except (Unsealable, errors.Internal) as error:
                    rotation.unreadable += 1
                    log.error("a pair stays as it is: %s", error)
                    continue
                if sealed is not raw:
                    changes.append((pair.account, place, raw, sealed))
        for at in range(0, len(changes), CHUNK):
            # What has changed meanwhile was sealed by a refresher, which takes the newest key.
            rotation.sealed += await self._accounts.reseal(queue, shard, changes[at : at + CHUNK])
        rotation.seen += len(found)
        return cursor

    async def _finish(self, rotation: Rotation) -> None:
        """
        Drop the data keys under which nothing is sealed any more.

        A whole rotation has passed since the last of them could be used.
        """
        _, silent = await self._told()
        if not (silent or rotation.unreadable):
            old = [
                key_id
                for key_id in await self._key_store.keys()
                if FINGERPRINT_KEY_ID < key_id < rotation.previous
            ]
            await self._key_store.drop(old)
            rotation.dropped = len(old)
        rotation.state = "done"


def _task_of(rotation: Rotation) -> str:
    """Return the id of the task that a rotation is."""
    return f"rotation-{rotation.started_ms}"
