"""The entries of the event log in words: a line for each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any

from elasticrun.core.protocol.plain import one_line

Entry = Mapping[str, Any]

#: What an entry of each kind says. One of a kind that is not here is shown as it is.
_WORDS = {
    "master_started": "the master of epoch {epoch} starts",
    "node_joined": "{node} joins, with {workers} workers",
    "node_detached": "{node} is away: {reason}",
    "node_gone": "{node} is gone: {reason}",
    "node_changed": "{node} is {phase}",
    "worker_failed": "{summary}",
    "milestone_reached": "the workers of {node} in round {round}: {milestone}",
    "steps_done": "round {round} has made step {step}",
    "save_stalled": "saves have held up round {round} for {seconds:.3f} s",
    "data_progress": "{dataset}, epoch {epoch}: {done} of {total} shards done, {failed} failed",
    "hang_found": "round {round} has made no step for {silence:.1f} s",
    "straggler_found": "{node} takes {factor:.2f} times as long as the others of round {round}",
    "check_started": "the nodes are checked: {reason}",
    "check_ended": "the check is over",
    "round_started": "round {round} starts with {nodes} nodes, {workers} workers: {reason}",
    "round_stopping": "round {round} stops ({cause}): {reason}",
    "round_stopped": "round {round} has stopped",
    "state_saved": "step {step} of round {round} is saved: {place}",
    "order_answered": "{order}: {answer}",
    "scale_started": "{direction} {order}: by {count}, to a world of {goal} nodes",
    "scale_ended": "the scale operation {order} is over: {reason}",
    "decision": "{text}",
    "job_ended": "the job has {outcome}: {reason}",
    "entries_lost": "{count} entries are missing here",
}
#: What tells a story by itself: decisions have the rest in their words.
TOLD = frozenset(
    {
        "decision",
        "straggler_found",
        "worker_failed",
        "node_detached",
        "node_gone",
        "order_answered",
        "entries_lost",
        "job_ended",
    }
)


def lines(entries: Iterable[Entry]) -> Iterator[str]:
    """A line for each entry: the wall clock of the master's host, the event's number, and what happened."""
    for entry in entries:
        when = datetime.fromtimestamp(entry["time"]).astimezone().isoformat(" ", "milliseconds")
        yield one_line(f"{when}  #{entry['event']:<5} {said(entry)}")


def said(entry: Entry) -> str:
    """What happened, in words; not yet safe to print."""
    words = _WORDS.get(entry["kind"])
    if entry["kind"] == "straggler_found" and entry.get("factor") == 1:
        words = "{node} is not slower than the others of round {round} any more"
    try:
        if words is not None:
            return words.format_map(entry)
    except (KeyError, IndexError, TypeError, ValueError):
        pass  # of another version
    rest = {name: value for name, value in entry.items() if name not in ("v", "event", "at", "time", "kind")}
    return f"{entry['kind']} {rest}"
