"""Goes through the histories of the model: all short ones, or random long ones."""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, field

from .model import Model, State


@dataclass
class Found:
    """What a search came to."""

    fault: str = ""
    """What must not be, and is; empty: nothing was found."""
    labels: list[str] = field(default_factory=list)
    """The history that leads there."""
    states: int = 0
    depth: int = 0
    whole: bool = False
    """All histories within the limits were gone through."""
    oks: int = 0

    def told(self) -> str:
        return f"{self.fault or 'holds'}: {' → '.join(self.labels)}"


def fault_of(model: Model, state: State, only_losses: bool) -> str:
    return model.broken(state) or ("" if only_losses else model.weak(state))


def breadth_first(
    model: Model, start: State, states_max: int, only_losses: bool = False, labelled: bool = False
) -> Found:
    """
    Go through all histories, the shortest first, until ``states_max`` states were seen.

    ``labelled`` keeps what leads to each, which takes five times the memory.
    """
    parents: dict[State, tuple[str, State] | None] = {start: None}
    seen: set[int] = {hash(start)}
    waiting = deque([(start, 0)])
    found = Found()
    while waiting:
        state, depth = waiting.popleft()
        for label, after in model.steps(state):
            after = model.tidied(after)
            key = hash(after)
            if key in seen:
                continue
            seen.add(key)
            if labelled:
                parents[after] = (label, state)
            found.oks = max(found.oks, len(after.oked))
            if fault := fault_of(model, after, only_losses):
                labels = _path(parents, after) if labelled else [label]
                return Found(fault, labels, len(seen), depth + 1, oks=found.oks)
            waiting.append((after, depth + 1))
        found.states, found.depth = len(seen), depth
        if len(seen) >= states_max:
            return found
    found.whole = True
    return found


def _path(parents: dict[State, tuple[str, State] | None], state: State) -> list[str]:
    labels = []
    while (step := parents[state]) is not None:
        label, state = step
        labels.append(label)
    return labels[::-1]


RARE = {
    "crashes": 0.15, "dies": 0.15, "restarts": 0.4, "stands": 0.2, "wants": 0.5, "proposes": 0.4,
    "refused": 0.4, "back": 0.3, "leaves": 0.2, "votes": 0.5, "folders": 0.1, "another boot": 0.3,
    "reports": 0.5,
}  # fmt: skip
"""Walks that only crash see little."""


def weight(label: str) -> float:
    if label.startswith("OK"):
        return 2.0
    return next((rare for word, rare in RARE.items() if word in label), 1.0)


def walk(model: Model, start: State, seed: int, length: int, only_losses: bool = False) -> Found:
    """Go one random way."""
    rng = random.Random(seed)
    state, labels = start, []
    for depth in range(length):
        options = sorted(model.steps(state), key=lambda one: one[0])  # Sets have no order.
        if not options:
            break
        label, state = rng.choices(options, [weight(one[0]) for one in options])[0]
        state = model.tidied(state)
        labels.append(label)
        if fault := fault_of(model, state, only_losses):
            return Found(fault, labels, depth + 1, depth + 1, oks=len(state.oked))
    return Found("", labels, len(labels), len(labels), oks=len(state.oked))


def walks(
    model: Model, start: State, seeds: range, length: int, only_losses: bool = False
) -> Found:
    """Go one random way for each seed, until one leads to a fault."""
    total = Found()
    for seed in seeds:
        one = walk(model, start, seed, length, only_losses)
        total.states += one.states
        total.oks += one.oks
        if one.fault:
            return Found(one.fault, one.labels, total.states, one.depth, oks=total.oks)
    return total


def play(model: Model, start: State, labels: list[str]) -> str:
    """
    Go a written way, each step by the beginning of its label; return the first fault.

    A step that the rules do not let happen is told as such; empty: the way ends well.
    """
    state = start
    for label in labels:
        options = [after for name, after in model.steps(state) if name.startswith(label)]
        if not options:
            return f"impossible: {label}"
        state = options[-1]
        if fault := fault_of(model, state, only_losses=False):
            return f"{fault} (after {label})"
    return ""
