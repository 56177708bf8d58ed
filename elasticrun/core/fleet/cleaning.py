"""What is removed of a job beside the replicas that are meant to run: ended ones, and those too many.

Theory. Replicas that have ended are kept for their logs: while the job goes on only the newest, as there may
be one for each loss, and once it is over as its policy says. What still runs, and is not meant to, is removed
whoever started it. What leaves already is not told again.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from elasticrun.core.fleet.replicas import CleanPolicy, Phase, Seen

#: How many replicas that end while the job goes on are kept for their logs.
MOST_KEPT = 8


def unwanted(
    seen: Mapping[int, Seen], live: Collection[int], policy: CleanPolicy, is_over: bool
) -> dict[int, str]:
    """The replicas to be removed, each with the reason; ``live``: those that are meant to run."""
    if is_over and policy is CleanPolicy.NONE:
        return {}
    kept = len(seen) if is_over else MOST_KEPT
    if is_over and not live and policy is CleanPolicy.ALL:
        kept = 0
    ended = sorted((each.index, each.is_leaving) for each in seen.values() if each.phase is Phase.ENDED)
    old = ended[: max(0, len(ended) - kept)]
    found = {index: "it has ended" for index, is_leaving in old if not is_leaving}
    for index, each in seen.items():
        is_there = each.phase is not Phase.ENDED or each.lingers
        if index not in live and is_there and not each.is_leaving:
            found.setdefault(index, "it is not meant to run")
    return found
