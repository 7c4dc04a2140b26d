"""
Renders Prometheus text from the ``stats()`` of every part.

A number becomes a gauge ``tidewarden_<part>_<name>``, or a counter when its name ends in ``_total``
(``count_puts`` is shown as ``puts_total``); milliseconds (``…_ms``) are shown as seconds; a nested
mapping of numbers becomes one series with its keys as the label ``kind``. Anything else is left
out: text belongs in ``/v1/status``.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import re
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.utils import floatToGoString

from tidewarden.clock import Clock, in_turns, sleep
from tidewarden.config.rights import EVERY_ACCOUNT, AccountRights, Rights
from tidewarden.errors import Error, Internal, NotFound
from tidewarden.histograms import STATS
from tidewarden.queue import Queues
from tidewarden.tokens import Tokens
from tidewarden.tokens.policy.account_state import STATES

from .histogram_metrics import histograms_of

log = logging.getLogger("tidewarden.server")

Sample = tuple[str, dict[str, str], Mapping[str, Any]]
"""A part's name, the labels of all its series, its stats."""

Families = dict[str, list[str]]
"""
The text of each family by its name: its head, then a line a series. The cycle collector passes over
texts; it would look through objects for each series, which are very many.
"""
TOKEN_NUMBERS = {
    "in_flight": "in_flight",
    "late": "late_total",
    "short_lives": "short_lives_total",
    "levelled": "levelled_total",
    "quarantines": "quarantines_total",
    "refreshers": "refreshers",
    "held": "held",
    "rate": "rate_limit",
}
"""The numbers of each provider: the name among the counts, and the name in the series."""
TOKEN_COUNTERS = (
    "spares",
    "lost_rotations",
    "replayed",
    "adopted",
    "orphans",
    "orphans_dropped",
    "events_lost",
)
JOURNAL_NUMBERS = (
    "journal_pending",
    "journal_unreadable",
    "journal_writable",
    "journal_damaged_bytes",
)
CLUSTER = "(of the whole cluster, the same at every node)"
HELP = {
    "tidewarden_cluster_epoch": "Number of the leadership that this node knows of",
    "tidewarden_cluster_leads": "1: this node leads",
    "tidewarden_cluster_members": "Members and workers that this node knows of",
    "tidewarden_cluster_quorum": "1: this node hears a majority of the members",
    "tidewarden_cluster_sweeping": "1: this node leads and does the leader's work",
    "tidewarden_cluster_term": "Raft's term",
    "tidewarden_cluster_view": "Number of the embedded store's start, or of the primary of several",
    "tidewarden_http_connections": "Open HTTP connections",
    "tidewarden_http_connections_total": "HTTP connections since the start",
    "tidewarden_http_refused_total": "HTTP connections refused: too many",
    "tidewarden_http_strangers_refused_total": (
        "Peers of the HTTP door that failed their TLS handshake or spoke no HTTP"
    ),
    "tidewarden_node_certificate_expires_seconds": (
        "Unix time at which the certificate of the doors ends"
    ),
    "tidewarden_node_commit_groups_total": (
        "Times that answers waited together for replicas or the disk"
    ),
    "tidewarden_node_commit_missed_total": "Answers that did not have their durability in time",
    "tidewarden_node_duties_begun_anew_total": (
        "Times that one of this node's duties failed for a reason of ours and was begun anew"
    ),
    "tidewarden_node_epoch": "Epoch under which this node leads; 0: it does not",
    "tidewarden_node_front_restarts_total": (
        "Further processes of this node that were started again"
    ),
    "tidewarden_node_leader": "1: this node leads",
    "tidewarden_node_leader_duties_begun_anew_total": (
        "Times that a duty of the leader stood still and was begun anew"
    ),
    "tidewarden_node_leader_duty_late_seconds": (
        "For how long a duty of the leader, the label kind, should have got on and has not"
    ),
    "tidewarden_node_leases_reaped_total": "Leases of dead nodes that this node ended",
    "tidewarden_node_lost_takes_released_total": "Tasks given back whose take was never answered",
    "tidewarden_node_raft_strangers_refused_total": (
        "Connections to Raft's port that were no member's"
    ),
    "tidewarden_node_sessions_attached": "Sessions that connections of this node share",
    "tidewarden_node_sessions_detached": "Sessions without a connection whose grace runs here",
    "tidewarden_node_sessions_ended_total": "Sessions that ended here",
    "tidewarden_node_store_behind_bytes": (
        "How far the store of the node, the label kind, is behind the primary"
    ),
    "tidewarden_node_store_calls_total": "Calls to the store",
    "tidewarden_node_store_carried_connections": (
        "Connections of other nodes to the store that this node carries, for a link is cut"
    ),
    "tidewarden_node_store_clock_stepped_seconds": (
        "How far the steps of the store's clock went, all together"
    ),
    "tidewarden_node_store_clock_steps_total": "Steps of the store's clock by more than 5 s",
    "tidewarden_node_store_connects_total": "Connections to the store that were made again",
    "tidewarden_node_store_failovers_total": (
        "Times that another store became the primary, since this node started"
    ),
    "tidewarden_node_store_detour_connections": (
        "Connections to the store that go by way of another node, for a link is cut"
    ),
    "tidewarden_node_store_fills_total": "Times that the store became full",
    "tidewarden_node_store_full": "1: the store is full, puts are refused",
    "tidewarden_node_store_full_refused_total": "Requests refused because the store was full",
    "tidewarden_node_store_last_gap_seconds": (
        "How long no store was open as the primary, when that happened last"
    ),
    "tidewarden_node_store_loss": (
        "1: a last resort chose the primary, and nobody has confirmed to know of the loss"
    ),
    "tidewarden_node_store_max_bytes": "The store's maxmemory; 0: none",
    "tidewarden_node_store_primary": "1: this node's store is the primary, and open",
    "tidewarden_node_store_problems": "What tidewarden doctor would say of the stores",
    "tidewarden_node_store_recoveries_total": (
        "Times that a last resort chose the primary, since this node started"
    ),
    "tidewarden_node_store_refuses": "1: the store answers, but takes no writes",
    "tidewarden_node_store_sync_share": (
        "Share of a full copy that the store of the node, the label kind, has received"
    ),
    "tidewarden_node_store_up": "1: this node is connected to the store",
    "tidewarden_node_store_used_bytes": "Memory that the store uses",
    "tidewarden_node_stores_in_sync": "Stores that have every acknowledged write",
    "tidewarden_node_stores_voting": "Stores of the members that vote",
    "tidewarden_node_sweep_moved_total": (
        "Tasks that this node moved as the leader: due ones, and those of ended leases"
    ),
    "tidewarden_node_sweep_rounds_total": "Rounds of the sweep on this node",
    "tidewarden_node_terms_total": "Times that this node became the leader",
    "tidewarden_node_waiting_takes": "Takes that wait at this node",
    "tidewarden_queue_accounts_deleted_total": f"Accounts deleted {CLUSTER}",
    "tidewarden_queue_accounts_died_total": f"Accounts that died: their grant has ended {CLUSTER}",
    "tidewarden_queue_accounts_levelled_total": f"Accounts refreshed ahead of their time {CLUSTER}",
    "tidewarden_queue_accounts_put_total": f"Accounts put {CLUSTER}",
    "tidewarden_queue_accounts_refreshed_total": f"Accounts refreshed {CLUSTER}",
    "tidewarden_queue_events_lost_total": f"Events that were not told: too many waited {CLUSTER}",
    "tidewarden_queue_spares_kept_total": f"Pairs kept aside {CLUSTER}",
    "tidewarden_queue_acked_total": f"Tasks done {CLUSTER}",
    "tidewarden_queue_acquired_total": f"Times that locks were acquired {CLUSTER}",
    "tidewarden_queue_buried": f"Tasks put aside until they are kicked {CLUSTER}",
    "tidewarden_queue_buried_total": f"Tasks put aside {CLUSTER}",
    "tidewarden_queue_delayed": f"Tasks that are not due yet {CLUSTER}",
    "tidewarden_queue_deleted_total": f"Tasks deleted {CLUSTER}",
    "tidewarden_queue_expired_total": f"Leases that ended by their time {CLUSTER}",
    "tidewarden_queue_fail_total": f"Tries that their consumer called failed {CLUSTER}",
    "tidewarden_queue_kept_total": (
        f"Locks that were acquired again by the key that held them {CLUSTER}"
    ),
    "tidewarden_queue_pauses_total": f"Times that a shard was paused or resumed {CLUSTER}",
    "tidewarden_queue_kicked_total": f"Tasks put aside that were made ready {CLUSTER}",
    "tidewarden_queue_leased": f"Tasks that consumers hold {CLUSTER}",
    "tidewarden_queue_loss_total": f"Leases that ended with their connection or node {CLUSTER}",
    "tidewarden_queue_mended_total": f"Index entries that Q.CHECK REPAIR put right {CLUSTER}",
    "tidewarden_queue_next_seconds": (
        f"Unix time at which something happens next: a due time, a lease's end {CLUSTER}"
    ),
    "tidewarden_queue_oldest_ready_deadline_seconds": (
        f"Unix time of the earliest deadline among ready tasks {CLUSTER}"
    ),
    "tidewarden_queue_outlived_total": (
        f"Tasks buried because nobody took them within their TTL {CLUSTER}"
    ),
    "tidewarden_queue_paused_until_seconds": (
        f"Unix time until which takes are paused; 0: they are not {CLUSTER}"
    ),
    "tidewarden_queue_purged_total": f"Tasks that Q.PURGE removed {CLUSTER}",
    "tidewarden_queue_put_total": f"Tasks put {CLUSTER}",
    "tidewarden_queue_ready": f"Tasks that can be taken {CLUSTER}",
    "tidewarden_queue_release_total": f"Tasks handed back by their holder {CLUSTER}",
    "tidewarden_queue_replaced_total": f"Tasks that a put with IFEXISTS replace changed {CLUSTER}",
    "tidewarden_queue_schedules": f"Schedules that put into the queue {CLUSTER}",
    "tidewarden_queue_shards": f"Shards of the queue {CLUSTER}",
    "tidewarden_queue_stale_seconds": (
        "How old the queue's figures may be, where no majority is in reach and this node's own copy"
        " is read"
    ),
    "tidewarden_queue_strays_total": (
        f"Index entries without a task that were passed by; a healthy queue has none {CLUSTER}"
    ),
    "tidewarden_queue_swept_total": f"Tasks that became ready by the leader's sweep {CLUSTER}",
    "tidewarden_queue_taken_total": f"Tasks taken {CLUSTER}",
    "tidewarden_queue_total": f"Tasks in any state {CLUSTER}",
    "tidewarden_queue_unreadable_total": (
        f"Records that could not be read and were put aside; a healthy queue has none {CLUSTER}"
    ),
    "tidewarden_queue_updated_total": f"Tasks that Q.UPDATE changed {CLUSTER}",
    "tidewarden_queue_waiting": f"Tasks that wait for their lane {CLUSTER}",
    "tidewarden_queue_waiting_nodes": f"Nodes at which takes wait {CLUSTER}",
    "tidewarden_queue_waiting_takes_here": "Takes that wait at this node",
    "tidewarden_beanstalkd_connections": "Open connections of clients of beanstalkd",
    "tidewarden_beanstalkd_connections_total": "Connections of such clients since the start",
    "tidewarden_beanstalkd_errors_total": "Their requests answered with an error, by its word",
    "tidewarden_beanstalkd_refused_total": "Connections of such clients refused: too many",
    "tidewarden_beanstalkd_requests_total": "Their requests by command",
    "tidewarden_beanstalkd_waiting": "Connections of such clients that wait for a job",
    "tidewarden_resp_connections": "Open connections of Redis clients",
    "tidewarden_resp_connections_total": "Connections of Redis clients since the start",
    "tidewarden_resp_denied_total": "Requests for which a user, the label kind, lacked the right",
    "tidewarden_resp_errors_total": "Requests answered with an error, by its word",
    "tidewarden_resp_logins_refused_total": "Wrong secrets",
    "tidewarden_resp_refused_total": "Connections of Redis clients refused: too many",
    "tidewarden_resp_requests_total": "Requests by verb",
    "tidewarden_resp_strangers": "Peers of the doors whom nobody has let in yet",
    "tidewarden_resp_strangers_held_back_total": (
        "Times that one of these was not read for a while, having used up its budget"
    ),
    "tidewarden_resp_strangers_sent_away_total": (
        "Those that were hung up on because others came after them"
    ),
    "tidewarden_resp_strangers_refused_total": (
        "Peers of the RESP door that failed their TLS handshake, or spoke TLS where there is none"
    ),
    "tidewarden_resp_waiting": "Requests that wait: for a task, a lock, an end",
    "tidewarden_tokens_accounts": f"Accounts by state {CLUSTER}",
    "tidewarden_http_waiting": "Requests over HTTP that wait: takes, results, puts for room, locks",
    "tidewarden_audit_entries_total": "Entries that this node wrote to the audit log",
    "tidewarden_audit_lost_total": "Entries that the store did not take, and that are lost",
    "tidewarden_audit_waiting": "Entries that the store has not taken yet",
    "tidewarden_tokens_adopted_total": "Answers of other nodes' requests that this node stored",
    "tidewarden_tokens_events_lost_total": "Events that were not told",
    "tidewarden_tokens_events_total": "Events that this node told, by kind",
    "tidewarden_tokens_held": "1: this node knows that its requests to the provider are held back",
    "tidewarden_tokens_in_flight": "Refreshes under way on this node",
    "tidewarden_tokens_intents_stored": (
        f"Refreshes that are under way, or of which nobody knows what became {CLUSTER}"
    ),
    "tidewarden_tokens_journal_pending": (
        "Answers in this node's journal that are not stored yet, those to consents included"
    ),
    "tidewarden_scrape_complete": (
        "1: all that the store knows of it is here; 0: some is missing, for the store did not"
        " answer in time"
    ),
    "tidewarden_tokens_figures_age_seconds": (
        "How long ago tidewarden_tokens_accounts and what else is of the whole cluster was read"
    ),
    "tidewarden_tokens_journal_damaged_bytes": (
        "Bytes of this node's journal that were damaged when it was last read, at the start"
    ),
    "tidewarden_tokens_journal_writable": (
        "0: this node's journal cannot be written, so single-use tokens are not refreshed here"
    ),
    "tidewarden_tokens_journal_unreadable": (
        "Answers in this node's journal that could not be read (token answers shows them)"
    ),
    "tidewarden_tokens_late_total": (
        "Refreshes of this node that came after the old token had expired"
    ),
    "tidewarden_tokens_levelled_total": "Accounts that this node had refreshed ahead of their time",
    "tidewarden_tokens_lost_rotations_total": (
        "Accounts whose new refresh token was lost with its answer"
    ),
    "tidewarden_tokens_orphans_dropped_total": (
        "Pairs that this node got without the store and that had no place when it was back"
    ),
    "tidewarden_tokens_orphans_total": "Pairs that this node got without the store",
    "tidewarden_tokens_quarantines_total": "Times that refusals jumped",
    "tidewarden_tokens_rate_limit": (
        "Requests a second, of all nodes, that the provider seems to bear"
    ),
    "tidewarden_tokens_refreshers": "Refreshes that may be under way on this node",
    "tidewarden_tokens_refreshes_total": "Refreshes of this node by the class of their outcome",
    "tidewarden_tokens_replayed_total": (
        "Answers that this node stored from its journal after a start"
    ),
    "tidewarden_tokens_revocations_total": (
        "Deleted accounts' tokens, by what became of their revocation"
    ),
    "tidewarden_tokens_short_lives_total": (
        "Refreshes of this node whose token lives shorter than ten seconds, or was over"
    ),
    "tidewarden_tokens_spares_stored": f"Pairs and previous tokens that are kept aside {CLUSTER}",
    "tidewarden_tokens_spares_total": "Pairs that this node kept aside",
    "tidewarden_tokens_stale_seconds": (
        "How old the provider's figures may be, where no majority is in reach and this node's own"
        " copy is read"
    ),
    "tidewarden_tokens_standing": (
        f"1 for how the provider stands: answers, silent, erring, limiting, refusing or"
        f" blocked {CLUSTER}"
    ),
    "tidewarden_webhook_deliveries_total": "Deliveries of this node by webhook and outcome",
}
SAMPLES_A_TURN = 15  # a queue is one of them; a turn has some milliseconds
LINES_A_TURN = 1500
SERIES_A_TURN = 150  # of a histogram
LONG_BYTES = 4096
PART_BYTES = 131_072
"""The bytes of a text that are sent in one turn, or a piece more."""
STORE_S = 2.0
"""
The longest wait for a list of queues, or the figures of all accounts: Prometheus waits ten seconds
in all, or less.
"""
QUEUES_S = 4.0
"""The longest wait for the figures of all queues."""
QUEUES_AT_ONCE = 32
NAMES_MAX = 2048
"""The most names of figures that are kept as they are shown."""
_UNFIT = re.compile(r"[^a-zA-Z0-9_]")
number_text: Callable[[float], str] = floatToGoString


class MetricsSnapshot:
    """Collects one family."""

    def __init__(self, family: Metric) -> None:
        self._family = family

    def collect(self) -> Iterable[Metric]:
        """Return the family, as prometheus-client asks for it."""
        return (self._family,)


def add_to(families: Families, samples: Iterable[Sample]) -> None:
    """Add a line for each of these samples' series to those of its family."""
    for part, labels, stats in samples:
        told = [_label(name, value) for name, value in labels.items()]
        plain = _labels(told)
        for stat, value in stats.items():
            name, series = _in_seconds(stat, _series(value))
            if not series:
                continue
            full = _full_name(part, name)
            lines = families.get(full)
            if lines is None:
                lines = families[full] = [_head(full, part, name)]
            for kind, number in series.items():
                shown = _labels([*told, _label("kind", kind)]) if kind else plain
                lines.append(f"{full}{shown} {number_text(number)}\n")


async def render(samples: list[Sample], clock: Clock) -> list[bytes]:
    """
    Return the pieces of the text of one scrape; for a thousand queues it takes many turns.

    ``samples`` is empty afterwards: to forget them all takes as long as a turn may.
    """
    families: Families = {}
    await sleep(clock, 0.0)  # ends the turn in which the samples were made
    histograms = histograms_of(stats for _, _, stats in samples)
    samples.reverse()
    await sleep(clock, 0.0)
    while samples:
        some = samples[: -SAMPLES_A_TURN - 1 : -1]
        del samples[-SAMPLES_A_TURN:]
        add_to(families, some)
        await sleep(clock, 0.0)
    text: list[bytes] = []
    for lines in map(families.pop, list(families)):
        for first in range(0, len(lines), LINES_A_TURN):
            await _add_piece(text, "".join(lines[first : first + LINES_A_TURN]).encode(), clock)
    for family in histograms:
        for first in range(0, len(family.samples), SERIES_A_TURN):
            await _add_piece(text, written(family, first), clock)
    return text


async def _add_piece(text: list[bytes], piece: bytes, clock: Clock) -> None:
    text.append(piece)
    if len(piece) > LONG_BYTES:
        await sleep(clock, 0.0)


async def in_parts(pieces: list[bytes], clock: Clock) -> AsyncIterator[bytes]:
    """
    Hand the pieces of a text out, some at a time, each time in a turn of the loop.

    One text would be copied more than once on its way: megabytes, in one turn. ``pieces`` is empty
    afterwards.
    """
    pieces.reverse()
    while pieces:
        some, length = [pieces.pop()], 0
        while pieces and (length := length + len(some[-1])) < PART_BYTES:
            some.append(pieces.pop())
        yield b"".join(some)
        await sleep(clock, 0.0)


def written(family: Metric, first: int) -> bytes:
    """Return the text of some series of a family, with its head before the first of them."""
    part = Metric(family.name, family.documentation, family.type)
    part.samples = family.samples[first : first + SERIES_A_TURN]
    registry = CollectorRegistry(auto_describe=False)
    registry.register(MetricsSnapshot(part))
    text = generate_latest(registry)
    return text if first == 0 else text.split(b"\n", 2)[2]


def of_tokens(stats: Mapping[str, Mapping[str, Any]], counts: Mapping[str, Any]) -> list[Sample]:
    """Return the tokens' figures by provider: accounts by state, and what this node has done."""
    samples: list[Sample] = []
    for name, found in stats.items():
        accounts = {state: found[state] for state in STATES if state in found}
        stored = {f"{what}_stored": found[what] for what in ("intents", "spares") if what in found}
        stands = {"standing": {found["state"]: 1}} if "state" in found else {}
        mark = {"stale_ms": found["stale_ms"]} if "stale_ms" in found else {}
        figures = {"accounts": accounts, **stored, **stands, **mark}
        samples.append(("tokens", {"provider": name}, figures))
    for (provider, outcome), number in counts.get("refreshes", {}).items():
        samples.append(("tokens", {"provider": provider}, {"refreshes_total": {outcome: number}}))
    for name, shown in TOKEN_NUMBERS.items():
        samples += [
            ("tokens", {"provider": key}, {shown: number})
            for key, number in counts.get(name, {}).items()
        ]
    for (provider, outcome), number in counts.get("revocations", {}).items():
        samples.append(("tokens", {"provider": provider}, {"revocations_total": {outcome: number}}))
    for (provider, kind), number in counts.get("events", {}).items():
        samples.append(("tokens", {"provider": provider}, {"events_total": {kind: number}}))
    for (name, outcome), number in counts.get("webhooks", {}).items():
        samples.append(("webhook", {"webhook": name}, {"deliveries_total": {outcome: number}}))
    samples.append(
        ("tokens", {}, {f"{name}_total": counts.get(name, 0) for name in TOKEN_COUNTERS})
    )
    samples.append(("tokens", {}, {name: counts.get(name, 0) for name in JOURNAL_NUMBERS}))
    samples.append(("tokens", {}, {STATS: counts.get(STATS, {})}))
    return samples


async def of_store(
    queues: Queues, tokens: Tokens | None, rights: Rights
) -> AsyncIterator[list[Sample]]:
    """
    Yield the store's figures of accounts and queues that ``rights`` let the user see.

    The last of them say whether all are there. A scrape does not wait for a store that is away, or
    owes an answer: a graph that has a gap, or shows old figures, has to say so.
    """
    complete = {}
    every = rights.allow_every("stats")
    if tokens is not None and (every or rights.allow_some("token:read")):
        found = await tokens.latest_stats(STORE_S)
        stats, age_s = found or ({}, 0.0)
        seen = EVERY_ACCOUNT if every else rights.accounts("token:read")
        yield [sample for sample in of_tokens(stats, tokens.metrics()) if _is_seen(sample, seen)]
        if found is not None:
            yield [("tokens", {}, {"figures_age_ms": age_s * 1000})]
        complete["accounts"] = int(found is not None)
    shown: list[Sample] = []
    complete["queues"] = int(await _of_queues(queues, rights, shown))
    yield shown
    yield [("scrape", {}, {"complete": complete})]


def _is_seen(sample: Sample, seen: AccountRights) -> bool:
    """Return whether figures are of a provider all of whose accounts are seen, or everything is."""
    provider = sample[1].get("provider")
    return seen.every or (provider is not None and seen.allow(provider))


async def _of_queues(queues: Queues, rights: Rights, shown: list[Sample]) -> bool:
    """Add the figures of queues to ``shown``, in their order; returns whether all are there."""
    found: dict[str, Sample] = {}
    names: list[str] = []

    async def ask(left: Iterator[str]) -> None:
        for name in left:
            with contextlib.suppress(
                Internal, NotFound
            ):  # its settings cannot be read (the doctor names it), or it has gone
                found[name] = "queue", {"queue": name}, await queues.admin.stats(name, marks=True)

    try:
        async with asyncio.timeout(STORE_S):
            every = await queues.admin.names()
            names = [name async for name in in_turns(every) if rights.see(name)]
        left = iter(names)
        async with asyncio.timeout(QUEUES_S), asyncio.TaskGroup() as group:
            for _ in range(min(QUEUES_AT_ONCE, len(names))):
                group.create_task(ask(left))
    except (Error, TimeoutError) as error:
        log.debug("metrics without all that the store knows of queues: %s", error)
        return False
    except ExceptionGroup as failed:
        if rest := failed.split(Error)[1]:
            raise rest from None
        log.debug("metrics without all that the store knows of queues: %s", failed)
        return False
    finally:
        shown += [found[name] for name in names if name in found]
    return True


def _series(value: object) -> dict[str, float]:
    """Return numbers by kind; a plain number has the kind ``""``."""
    if isinstance(value, int | float):
        return {"": float(value)}
    if isinstance(value, Mapping):
        return {
            str(kind): float(number)
            for kind, number in value.items()
            if isinstance(number, int | float) and kind
        }
    return {}


def _in_seconds(name: str, series: dict[str, float]) -> tuple[str, dict[str, float]]:
    """
    Convert milliseconds to seconds, in which Prometheus counts.

    -1 ms stands for no time, which becomes no sample.
    """
    if not name.endswith("_ms"):
        return name, series
    return f"{name[:-3]}_seconds", {
        kind: number / 1000 for kind, number in series.items() if number != -1
    }


@functools.lru_cache(maxsize=NAMES_MAX)
def _full_name(part: str, name: str) -> str:
    return _UNFIT.sub("_", f"tidewarden_{part}_{_of_count(name)}".lower())


def _of_count(name: str) -> str:
    return f"{name.removeprefix('count_')}_total" if name.startswith("count_") else name


def _head(full: str, part: str, name: str) -> str:
    what = HELP.get(full, f"{_of_count(name)} of {part}".replace("_", " "))
    what = what.replace("\\", r"\\").replace("\n", r"\n")
    kind = "counter" if full.endswith("_total") else "gauge"
    return f"# HELP {full} {what}\n# TYPE {full} {kind}\n"


def _label(name: str, value: str) -> str:
    escaped = value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
    return f'{name}="{escaped}"'


def _labels(told: list[str]) -> str:
    return f"{{{','.join(sorted(told))}}}" if told else ""
