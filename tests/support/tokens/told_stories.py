"""What a story says, as the tests of stories expect it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from support.tokens.story_scenes import Story


class Told(NamedTuple):
    """What a scene's story must say; ``never``: what it must not."""

    state: str
    concluded: Sequence[str]
    next: str
    says: Sequence[str] = ()
    never: Sequence[str] = ()


def whole(story: Story) -> str:
    """All of its sentences."""
    found = [story.summary, *(one.text for one in story.concluded), story.next.text, *story.advice]
    return "\n".join(found)
