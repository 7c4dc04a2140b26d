"""
The test face of the product: the one place that names private attributes of it.

Tests look at what an object keeps for itself, and put something else in the place of what it
stands on, by these names alone; ``tests/meta/test_private_names.py`` counts the exceptions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any

# What many objects stand on
clock_of = attrgetter("_clock")
config_of = attrgetter("_config")


def link_of(part: Any) -> Any:
    """The connection to the store that it sends by."""
    return getattr(part, "catalog", part)._link


def scripts_of(part: Any) -> Any:
    """The scripts that it runs."""
    return getattr(part, "catalog", part)._scripts


def use_clock(part: Any, clock: Any) -> None:
    """Have it read another clock from now on."""
    part._clock = clock


def step_silently(clock: Any, seconds: float) -> None:
    """Step a clock that is moved by hand, and wake nobody who waits for it."""
    clock._monotonic += seconds


# Queues of a node
settings_of = attrgetter("catalog.settings")  # by name, as the node knows them
topics_of = attrgetter("catalog.topics")  # the queues of each topic, as the node knows them
background_tasks_of = attrgetter("catalog.background")  # asyncio tasks of the queues' own
capacity_waits_of = attrgetter("capacity_wait.lines.by_place")  # puts that wait for room, by queue
awaited_of = attrgetter("results.awaited")  # whose ends somebody waits for
strategies_of = attrgetter("catalog.strategies")  # what chooses the shard of a put, by queue
looks_of = attrgetter("_looks")  # looks for takes whose answer was lost
takes_of = attrgetter("_takes")  # those that a pool has asked
timer_of = attrgetter("_timer")  # of a shard
flying_of = attrgetter("_flying")  # calls of a shard that are not answered yet
store_memory_of = attrgetter("_store_memory")
tries_left_of = attrgetter("_waitlist._left")  # of a shard's waiting takes
LIST, FLY = "_list", "_fly"


def shards_of(queues: Any, name: str) -> Sequence[Any]:
    """The shards of a queue that the node knows; none where it does not know the queue."""
    return queues.catalog.shards.get(name, ())


def parked_in(queues: Any, name: str, shard: int = 0) -> Any:
    """The takes that wait at a shard of a queue."""
    shards = shards_of(queues, name)
    return shards[shard].parked if shards else ()


def lose_session(queues: Any, shared: Any) -> None:
    """Let the node hear that a shared session is lost."""
    queues.sessions.lost(shared)


async def run_session_script(queues: Any, verb: str, *args: Any) -> Any:
    """Run a script of shared sessions, as the node would; returns its reply."""
    return await queues.session_records.run(verb, *args)


# Links to the store, commits, and the servers of a Redis Cluster
transport_of = attrgetter("_transport")
waiting_at = attrgetter("_waiting")  # calls that are not answered yet
backlog_of = attrgetter("_backlog")  # calls that are not sent yet
way_of = attrgetter("_way")  # how a link finds its server
held_of = attrgetter("_held")  # the answers that a commit holds back
requirement_of = attrgetter("_requirement")  # what a commit has to wait for
begin_of = attrgetter("_begin")  # the commands that begin a group
commits_by_server = attrgetter("_made")
links_by_shard = attrgetter("_at")
primaries_of = attrgetter("_primaries")
followers_of = attrgetter("_followers")  # tasks that follow a cluster's servers
RAISE_VIEW, WRITTEN = "_raise_view", "_written"


def fail_backlog(link: Any, why: str) -> None:
    """Refuse what a link has not sent yet."""
    link._fail_backlog(why)


def fail_commit(commit: Any, why: str) -> None:
    """Fail the groups of a commit that are under way."""
    commit._failed(why)


async def commit_group(commit: Any) -> None:
    """Wait for the next group of a commit."""
    await commit._group()


async def has_rested(commit: Any) -> bool:
    """Whether the store syncs each write no longer."""
    return bool(await commit._rested())


async def launch_store(store: Any) -> None:
    """Start the process of an embedded store."""
    await store._launch()


def hear_topology(topology: Any, address: str, answer: Any) -> None:
    """Let it hear what a server says of its cluster."""
    topology._heard(address, answer)


async def ask_one(topology: Any, address: str, link: Any) -> Any:
    """Have it ask one server about its cluster."""
    return await topology._ask_one(address, link)


def note_subscription(ears: Any, *reply: Any) -> None:
    """Let it hear the reply to a subscription."""
    ears._subscribed(*reply)


# Tokens
accounts_of = attrgetter("_accounts")
journal_of = attrgetter("_journal")
vault_of = attrgetter("_reader._vault")
keyring_of = attrgetter("_reader._vault.keyring")
reader_of = attrgetter("_reader")  # of tokens; a connection's: of its requests
cache_of = attrgetter("_cache")
pools_of = attrgetter("_pools")  # by provider
token_endpoint_of = attrgetter("_grants._revoker._endpoint")
journal_replay_of = attrgetter("_refreshing.replay")
revoker_of = attrgetter("_grants._revoker")
outbox_of = attrgetter("_grants._lifecycle._outbox")
queue_names_of = attrgetter("_directory.queues")  # by provider
is_running = attrgetter("_running")
rescue_of = attrgetter("_refreshing._rescue")  # what looks for the refreshes of dead nodes
companion_workers_of = attrgetter("_account_events.companions._lines")
watchers_of = attrgetter("_watchers")  # readers that wait, by account
waiting_readers_of = attrgetter("_waiting_readers._events")
answers_of = attrgetter("_answers")  # of a journal
committing_of = attrgetter("_committing")  # the lock of a journal's writes
thread_of = attrgetter("_thread")  # in which a journal writes
under_way_of = attrgetter("_under_way")  # accounts that are asked about, or written back
refresher_of = attrgetter("_refresher")
is_eager = attrgetter("_eager")
owed_of = attrgetter("_owed")  # what a refresher has still to write down
heads_of = attrgetter("_heads")  # request heads that are kept
connector_of = attrgetter("_connector")
key_store_of = attrgetter("_key_store")
session_of = attrgetter("_session")
probing_of = attrgetter("_probing")  # accounts that probe a limit
untold_of = attrgetter("_counts")  # evidence that is not told yet
version_of = attrgetter("_version")
CONNECT = "_connect"


def idle_connections_of(tokens: Any, provider: str) -> Any:
    """Connections to a provider that are kept open, by address."""
    return token_endpoint_of(tokens)._lines[provider].poster._connector._conns


async def note_outcome(refresher: Any, *outcome: Any) -> Any:
    """Have a refresher write down what became of a refresh."""
    return await refresher._note(*outcome)


async def do_task(worker: Any, *args: Any) -> None:
    """Have a worker of a system queue do a task."""
    await worker._do(*args)


def wrap_key(vault: Any, *args: Any) -> Any:
    """Seal a data key with a key-encryption key."""
    return vault._wrap(*args)


def say_connected(reader: Any, connected: Callable[[], bool]) -> None:
    """Have a reader ask this whether the store is there."""
    reader._connected = connected


def refill(limits: Any) -> None:
    """Make nothing of a client's time spent."""
    limits._shared.hosts._spent_s.clear()


def answer_within(part: Any, seconds: float) -> None:
    """Set how long it waits for an answer."""
    part._answer_s = seconds


# The cluster, Raft and the processes of a node
voter_of = attrgetter("_running.voter")
ticker_of = attrgetter("_running.ticker")
beating_of = attrgetter("_running.beating")  # the task that shows a loop's turns to Raft's thread
failures_of = attrgetter("_failures")
open_questions_of = attrgetter("_running.proposals._open")
addresses_of = attrgetter("_addresses")
times_of = attrgetter("_times")
under_way_at = attrgetter("_asking")  # hosts that a name server is asked for
timers_of = attrgetter("_timers")  # of the sweep
comparing_of = attrgetter("_comparing")  # the task that compares two stores
LAUNCH, WATCH, PAID = "_launch", "_watch", "_paid"


def close_file(file: Any) -> None:
    """Close a file of Raft's, as the library does at the end."""
    file._destroy()


def is_heartbeat_wanted(heartbeat: Any) -> bool:
    """Whether the heartbeat's thread has to say that the process lives."""
    return bool(heartbeat._is_wanted())


async def beat(heartbeat: Any, link: Any) -> None:
    """Say once, in the heartbeat's stead, that the process lives."""
    await heartbeat._beat(link)


def say_stale(registration: Any, error: Exception) -> None:
    """Let a node hear that it is registered no more."""
    registration._say_stale(error)


async def read_clock(watch: Any, *reading: Any) -> None:
    """Let the watch of a store's clock have a reading."""
    await watch._read(*reading)


def say_stuck(schedules: Any, *what: Any) -> None:
    """Have it log a schedule whose next tick cannot be computed."""
    schedules._say_stuck(*what)


async def keep_process(processes: Any, *orders: Any) -> None:
    """Keep a further process running."""
    await processes._keep(*orders)


# Doors
listener_of = attrgetter("_listener")
admission_of = attrgetter("_admission")
http_runner_of = attrgetter("_listener._runner")
http_handlers_of = attrgetter("_listener._runner.server.connections")
users_read_at = attrgetter("_open_requests._users")  # by whom the HTTP door is read
tokens_of = attrgetter("_tokens")
cluster_of = attrgetter("_node_routes._cluster")
authorization_of = attrgetter("_authorization")
right_users_of = attrgetter("_right")  # secrets that were found right
sockets_of = attrgetter("_sockets")
is_accepting = attrgetter("_accepting")
is_reading = attrgetter("_flow.reading")
is_reading_paused = attrgetter("_reading_paused")
requests_of = attrgetter("_requests")
chunks_of = attrgetter("_chunks")
ahead_of = attrgetter("_flow.ahead")  # bytes that were read ahead
begun_count_of = attrgetter("_begun_count")
messages_of = attrgetter("_messages")  # of an HTTP connection
stall_of = attrgetter("_stall")  # the timer of a peer that does not read
PUMP, WALK, BEGIN, ACCEPT = "_pump", "_walk", "_begin", "_accept"


def payload_read_by(handler: Any) -> Any:
    """What an HTTP connection has read of its request's body, or the stream of it."""
    request = handler._current_request
    return request._read_bytes or request.content


def look_at(handler: Any, unread: int) -> None:
    """Look whether a peer has read any of what is sent to it."""
    handler._look(unread)


def pause_listener(listener: Any) -> None:
    """Take nobody in for now."""
    listener._pause()


def resume_listener(listener: Any) -> None:
    """Take peers in again."""
    listener._resume()


def end_login(connection: Any) -> None:
    """End the time that a peer has to log in."""
    connection._login_over()


def check_quickly(users: Any, name: str, secret: str) -> Any:
    """Whether a secret is known to be right or wrong without hashing it."""
    return users._quickly(name, secret)


# The SDK, and what else keeps something
idle_of = attrgetter("_idle")  # connections of a client that nobody uses
keeper_of = attrgetter("_keeper")  # the task that keeps leases
told_of = attrgetter("_told")  # the event by which a worker is told to end
tag_of = attrgetter("_tag")  # of a maker of ids
sequence_of = attrgetter("_sequence")
line_of = attrgetter("_line")
audit_waiting_of = attrgetter("_waiting")  # the entries that the store has not taken
kept_of = attrgetter("_kept", "_kept_before")  # decisions about rights


def use_sequence(maker: Any, number: int) -> None:
    """Set the number from which a maker of ids counts on."""
    maker._sequence = number


def look_again(account_tokens: Any, client: Any, account: str) -> None:
    """Have a token that is kept for the account of a client looked at again at its next use."""
    for cache in account_tokens._caches[client].values():
        cache._kept[account].until = 0.0


def retry_within(line: Any, seconds: float) -> None:
    """Set how long a client's line tries again."""
    line._retry_s = seconds


async def pause_line(line: Any, until_s: float) -> None:
    """Wait between two tries of a client's line."""
    await line._pause(until_s)


def comparison_of(age: Any) -> Any:
    """The comparison of a copy with its primary that is under way; None: none is."""
    return age._look


def age_known_at(age: Any) -> float:
    """When the copy was last known to be whole, in monotonic seconds; -inf: never."""
    return float(age._whole_at)


def answer_for_sentinels(monkeypatch: Any, answers: Any) -> None:
    """Have sentinels say ``answers()``, one each, instead of what they know."""

    async def answer(link: Any, service: str) -> Any:
        return answers()

    monkeypatch.setattr("tidewarden.store.sentinel.answer_of", answer)


heard_by = attrgetter("_told")  # takes a message of a sentinel

# Traffic
pending_of = attrgetter("_pending")  # notes of requests that are in no table yet


# What the web console keeps
names_of_files = attrgetter("_files")
since_of_alerts = attrgetter("_since")


def kept_of_queues(choice: Any) -> list[int]:
    """How many names a choice of queues keeps: of those at work, the busy, those asked for."""
    return [len(known) for known in (choice._work, choice._busy, choice._asked)]


def kept_of_nodes(timeline: Any) -> list[int]:
    """How many nodes a time line keeps anything of."""
    return [len(known) for known in (timeline._states, timeline._boots, timeline._silent_ms)]


def job_bytes_of(connection: Any) -> int:
    """How long a job the beanstalkd door would keep of this peer."""
    return connection._reader.job_bytes
