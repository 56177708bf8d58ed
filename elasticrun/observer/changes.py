"""What changed from one state to the next, as JSON: what readers get who have the state before.

Theory. ``changes(old, new)`` holds what turns ``old`` into ``new``, and nothing that both have. A section
that is one value is there as a whole if it differs. A list that grows at its end is told by how many rows to
drop in front, how many of the others to keep, and which rows to add. Nodes are told by name. ``apply`` in
``page.js`` is the other half, and ``applied`` its twin for tests.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from elasticrun.observer.model import NodeRow, State
from elasticrun.rpc.records import to_json

#: Sections that are one value, and lists that grow at their end.
VALUES = ("clock", "job", "spent", "saves", "data")
LISTS = ("rounds", "failures", "recoveries", "decisions", "steps")


def changes(old: State, new: State) -> dict[str, Any]:
    """What turns the old state into the new one; its ``after`` is the old one's sequence number."""
    told: dict[str, Any] = {"after": old.sequence, "sequence": new.sequence}
    for name in VALUES:
        if getattr(old, name) != getattr(new, name):
            told[name] = to_json(getattr(new, name))
    for name in LISTS:
        if (tail := _tail(getattr(old, name), getattr(new, name))) is not None:
            told[name] = tail
    if (nodes := _nodes(old.nodes, new.nodes)) is not None:
        told["nodes"] = nodes
    return told


def is_news(told: dict[str, Any]) -> bool:
    """Whether more changed than what passes with time."""
    return bool(told.keys() - {"after", "sequence", "clock", "spent"})


def _tail(old: Sequence[object], new: Sequence[object]) -> dict[str, Any] | None:
    if old == new:
        return None
    drop = next((at for at, row in enumerate(old) if new and row == new[0]), len(old))
    keep = 0
    for before, now in zip(old[drop:], new, strict=False):
        if before != now:
            break
        keep += 1
    return {"drop": drop, "keep": keep, "add": to_json(tuple(new[keep:]))}


def _nodes(old: tuple[NodeRow, ...], new: tuple[NodeRow, ...]) -> dict[str, Any] | None:
    if old == new:
        return None
    before, now = {row.name: row for row in old}, {row.name for row in new}
    return {
        "set": to_json(tuple(row for row in new if before.get(row.name) != row)),
        "gone": [name for name in before if name not in now],
    }


def applied(state: dict[str, Any], told: dict[str, Any]) -> dict[str, Any]:
    """The JSON of a state after these changes, as the page works it out."""
    after = {**state, "sequence": told["sequence"]}
    for name in VALUES:
        after[name] = told.get(name, state[name])
    for name in LISTS:
        if tail := told.get(name):
            kept = state[name][tail["drop"] : tail["drop"] + tail["keep"]]
            after[name] = [*kept, *tail["add"]]
    if nodes := told.get("nodes"):
        rows = {row["name"]: row for row in state["nodes"] if row["name"] not in nodes["gone"]}
        rows |= {row["name"]: row for row in nodes["set"]}
        ranks = sorted(rows.values(), key=lambda it: (it["rank"] is None, it["rank"] or 0, it["name"]))
        after["nodes"] = ranks
    return after
