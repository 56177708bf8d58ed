"""Which jobs run: a job that waits starts as soon as its least number of nodes can be had.

Theory. All that running jobs have above their least can be taken from them. So whether a job finds room
depends only on the least of those that run, and no growth can ever keep a job waiting.

Those that wait are asked in the order of their submission, where one of priority counts as much as
``aging`` seconds. Both wait, so time does not change the order of two jobs. If one finds no room, later
ones may pass it, as they may be smaller; but only for ``patience`` seconds. From then on nothing starts
before it, so units gather that no job may keep: elastic jobs may use them until then. So none starves: with
time every job is the first one, and jobs that run come to an end.

A job that runs goes on. It only stops if the cluster has become smaller than the least of all that run: then
elastic ones before rigid ones, and those that would have started last come first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from elasticrun.core.cluster.jobs import Job, Rules


def running(jobs: Iterable[Job], units: int, rules: Rules, now: float) -> tuple[list[Job], Mapping[str, str]]:
    """The jobs of one kind that shall run, in the order of submission, and why each other one does not."""
    ordered = sorted(jobs, key=lambda job: rules.turn(job.submitted, job.priority, job.name))
    chosen = {job.name for job in ordered if job.nodes > 0}
    left = units - sum(job.pledge for job in ordered if job.name in chosen)
    stopped = set[str]()
    for job in (job for rigid in (False, True) for job in reversed(ordered) if job.is_rigid is rigid):
        if left < 0 and job.name in chosen:
            chosen.remove(job.name)
            stopped.add(job.name)
            left += job.pledge
    refused, held = dict[str, str](), ""
    for job in ordered:
        if job.name in chosen:
            continue
        if held:
            refused[job.name] = f"it waits behind {held}, which has waited too long to be passed"
        elif job.pledge <= left:
            chosen.add(job.name)
            left -= job.pledge
            continue
        else:
            refused[job.name] = f"it needs {job.pledge} units, and {left} can be had"
            if job.pledge <= units and not rules.may_be_passed(job.submitted, now):
                held = job.name
        if job.name in stopped:
            refused[job.name] = f"the cluster has only {units} units now; {refused[job.name]}"
    return [job for job in ordered if job.name in chosen], refused
