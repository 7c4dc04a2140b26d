"""Tells one refresh as text, for each thing that a provider may do: ``*.txt``."""

from __future__ import annotations

import contextlib
import textwrap
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from support.providers.scripted_provider import (
    Fault,
    ScriptedProvider,
    answers,
    cut,
    rotate_and_cut,
    scripted_provider,
)
from support.tokens import harness
from support.transcripts.recording import Recording, compare, journals_noted, store_watched

from tidewarden import errors

HERE = Path(__file__).parent
CONFIRM_S = 0.3
"""Between the first refusal that counts and the second, in place of ten minutes."""
ENDS = {
    "fresh": "tokens.stored",
    "failing": "tokens.failed",
    "dead": "events    account.dead",
    "lost_rotation": "events    account.dead",
}
"""What the last line of a story names, by the state in which the account is left."""


@dataclass(frozen=True)
class Scene:
    """
    One story: its title, what is told before it, what the provider does, and how it ends.

    ``answers`` are used up one a request; ``state``: the account's state that ends the story.
    """

    title: str
    why: str
    answers: tuple[Fault, ...]
    state: str = "failing"
    settings: dict[str, Any] = field(default_factory=dict)
    grace: bool = False
    """A refresh token that was used last gets the same pair again."""
    nowhere: bool = False
    """Nothing listens at the provider's address."""
    others: bool = False
    """Another account of the same client is refreshed well meanwhile."""


async def well(_request: web.Request, endpoint: ScriptedProvider, token: str) -> web.StreamResponse:
    """The provider rotates the refresh token and answers with the new pair."""
    return endpoint.rotate(token)


def refused(status: int, code: str, **headers: str) -> Fault:
    return answers(status, {"error": code}, **headers)


SCENES = {
    "well": Scene(
        "A refresh goes well",
        "The intent is written before the request is sent. The answer is on the node's disk before it"
        " is written back to the store.",
        (well,),
        "fresh",
    ),
    "invalid_grant": Scene(
        "Refused three times: the grant has ended",
        "One refusal is not believed. After the third that counts, while another account of the client"
        " is well, the account is dead, and that is told.",
        (refused(400, "invalid_grant"),) * 3,
        "dead",
        others=True,
    ),
    "invalid_scope": Scene(
        "Refused for its scope",
        "A refusal of the account's, like invalid_grant: it is asked about again later.",
        (refused(400, "invalid_scope"),),
    ),
    "rejected": Scene(
        "Refused without a reason that is known",
        "A refusal of the account's, too: the request was not to the provider's liking.",
        (refused(400, "invalid_request"),),
    ),
    "invalid_client": Scene(
        "The provider refuses our client",
        "No account is to blame, and none is given up for it: the provider's probes find out when it"
        " is over.",
        (refused(401, "invalid_client"),),
    ),
    "unauthorized_client": Scene(
        "The client may not use this grant",
        "It counts as a refusal of the account's when others are well.",
        (refused(400, "unauthorized_client"),),
    ),
    "misdirected": Scene(
        "There is no token endpoint at that address",
        "A mistake in the settings, or a provider that moved: no account is to blame, and none is given"
        " up for it.",
        (answers(404, "<html>Not found</html>"),),
    ),
    "rate_limited": Scene(
        "The provider wants fewer requests",
        "Its Retry-After is kept to; for the account nothing is lost.",
        (refused(429, "slow_down", Retry_After="30"),),
    ),
    "account_limited": Scene(
        "The account asks too often",
        "The provider's section of the configuration says that 423 means this account alone.",
        (refused(423, "locked"),),
        settings={"errors": {"423": "account_limited"}},
    ),
    "too_early": Scene(
        "The token is still too fresh for the provider",
        "The provider's section of the configuration says what its error means.",
        (refused(400, "too_soon"),),
        settings={"errors": {"400 too_soon": "too_early"}},
    ),
    "unavailable": Scene(
        "The provider has an error of its own",
        "It is tried again soon; the refresh token was not used up.",
        (refused(503, "temporarily_unavailable"),),
    ),
    "unknown_not_processed": Scene(
        "The connection breaks, and the request was not processed",
        "Nobody knows whether the refresh token was used up. It is sent again in its place, at once,"
        " and works.",
        (cut, well),
        "fresh",
    ),
    "unknown_processed": Scene(
        "The connection breaks after the request was processed",
        "The new refresh token went with the answer. Each use of the old one is refused: its rotation"
        " is lost, and only its owner's consent helps.",
        (rotate_and_cut, *(refused(400, "invalid_grant"),) * 3),
        "lost_rotation",
        others=True,
    ),
    "unknown_within_the_grace": Scene(
        "The connection breaks, and the provider gives a grace",
        "Within the grace the old refresh token gets the same pair again.",
        (rotate_and_cut, well),
        "fresh",
        {"grace_s": 60.0},
        grace=True,
    ),
    "no_connection": Scene(
        "Nothing listens at the provider's address",
        "No request was sent, so nothing can have happened to the refresh token.",
        (),
        nowhere=True,
    ),
    "unreadable": Scene(
        "An answer of success that nobody can read",
        "It may hold a refresh token: what came is kept, sealed, on the node's disk.",
        (answers(200, "<html>Please sign in</html>"),),
    ),
}


@contextlib.asynccontextmanager
async def _told(recording: Recording, scene: Scene) -> Any:
    """Serve a token endpoint that notes each request for the story's account, and its answer."""
    left = list(scene.answers)

    async def noted(request: web.Request, made: ScriptedProvider, token: str) -> web.StreamResponse:
        if not token.startswith("ada."):
            return made.rotate(token)
        form = dict(await request.post())
        recording.note(
            "provider", f"is asked: grant_type={form['grant_type']} refresh_token={token}"
        )
        answer = await left.pop(0)(request, made, token)
        if request.transport is None or request.transport.is_closing():
            recording.note("provider", "closes the connection without an answer")
        elif answer.status == 200 and answer.content_type == "application/json":
            recording.note(
                "provider", f"answers 200: a pair with refresh_token=ada.{made.current['ada']}"
            )
        else:
            kind = "a page" if answer.content_type == "text/html" else answer.text
            recording.note("provider", f"answers {answer.status}: {kind}")
        return answer

    async with scripted_provider(grace_s=60.0 * scene.grace, script=noted) as made:
        if scene.nowhere:
            made.url = "http://127.0.0.1:1/token"
        yield made


@pytest.mark.parametrize("name", SCENES)
async def test_the_story_of_a_refresh(
    name: str, valkey: Any, tmp_path: Path, rewrite: bool, eventually: Any
) -> None:
    scene = SCENES[name]
    recording = Recording({"ada"}, {script.sha: script.name for script in harness.queue_scripts()})
    recording.ends_with = ENDS[scene.state]
    async with (
        store_watched(recording, valkey.path),
        _told(recording, scene) as endpoint,
        harness.node(
            valkey, tmp_path, harness.provider(endpoint.url, **scene.settings), confirm_s=CONFIRM_S
        ) as side,
    ):
        with journals_noted(recording):
            if scene.others:
                await side.tokens.put("p/bob", {"refresh_token": "bob.0"})
                await harness.in_state(side, "fresh", "p/bob")
            recording.note("owner", "puts p/ada with refresh_token=ada.0")
            await side.tokens.put("p/ada", {"refresh_token": "ada.0"})
            if scene.others:
                await eventually(lambda: endpoint.requests["ada.0"] == 2)
                await side.tokens.refresh("p/bob")
            account = await harness.in_state(side, scene.state, "p/ada")

            async def over() -> bool:
                await side.link.call("ECHO", "the next line of MONITOR")
                return recording.over.is_set()

            await harness.eventually(over)
        try:
            token = await side.tokens.get("p/ada")
            readers = f"get the access token of generation {token.generation}"
        except errors.Error as error:
            readers = f"are answered {error.code}"
    lines = [scene.title, "", *textwrap.wrap(scene.why, 98), "", recording.text()]
    lines += [
        f"p/ada is {account['state']}" + (f": {account['message']}" if account["message"] else "")
    ]
    lines += [f"tries: {account['tries']}; readers {readers}", ""]
    compare("\n".join(lines), HERE / f"{name}.txt", rewrite=rewrite)
