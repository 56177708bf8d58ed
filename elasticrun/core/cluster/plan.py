"""How many nodes each job of a cluster gets: a decision, carried out by others.

Theory. ``core/cluster/admission.py`` says which jobs run. The *ideal* shares their nodes by what these are
worth: each job has its least, and one node more goes to the job to which it adds most, times its priority,
until there is none left. As a node adds less the more there are, this is the best that can be done, and it
depends on nothing but the jobs that run and the number of units.

Getting there costs something: a change of size stops a job for a while. So a plan goes from what is towards
the ideal, never beyond, and each step has to pay: what it adds within the horizon is more than the work
that is lost by the jobs that it changes. It is the same bound for more nodes and for fewer. Only what makes
room for a job that starts is not weighed. It is taken where it costs least. A job that starts, or changes
anyhow, changes for nothing, so it goes further.

Invariants, kept by ``tests/property/test_cluster.py``. No kind is used beyond its units, and no job has
nodes outside its bounds. A plan that was carried out is followed by one without changes, then and at any
later moment, until a job comes or ends, units come or go, or a job's curve is measured anew. So there are
no swings. If no job starts or has to stop, the plan adds more than all its changes lose.

What was seen in PaddlePaddle's autoscaler (PaddlePaddle/cloud, go/autoscaler/autoscaler.go), and cannot be
here: on scale-up it adds to a node's idle processors what it takes of them. And it grows GPU jobs up to all
GPUs, but shrinks them from a lower bound on, so that between the two they go up and down without end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from elasticrun.core.cluster.admission import running
from elasticrun.core.cluster.jobs import Change, Job, Plan, Rules
from elasticrun.core.cluster.shares import Shares, ideal

_DEFAULT = Rules()


def plan(jobs: Sequence[Job], units: Mapping[str, int], now: float, rules: Rules = _DEFAULT) -> Plan:
    """Decide anew. ``units``: of each kind, those in use included; none of a kind that is not named.

    Names of jobs are unique. The same jobs in another order give the same plan, but for the order of jobs.
    """
    nodes = {job.name: 0 for job in jobs}
    reasons = dict[str, str]()
    waiting = dict[str, str]()
    for kind in sorted({job.kind for job in jobs}):
        alike = [job for job in jobs if job.kind == kind]
        shares, refused = _planned(alike, units.get(kind, 0), now, rules)
        nodes |= shares.nodes
        reasons |= {**refused, **shares.reasons}
        waiting |= refused
    changes = [
        Change(job.name, job.nodes, nodes[job.name], reasons[job.name])
        for job in jobs
        if nodes[job.name] != job.nodes
    ]
    return Plan(nodes, tuple(sorted(changes, key=lambda it: (it.nodes > it.before, it.job))), waiting)


def _planned(jobs: Sequence[Job], units: int, now: float, rules: Rules) -> tuple[Shares, Mapping[str, str]]:
    """The nodes of the jobs of one kind that run, and why each other one does not."""
    chosen, refused = running(jobs, units, rules, now)
    shares = Shares(chosen, ideal(chosen, units), units, rules.horizon)
    shares.make_room()
    shares.improve()
    return shares, refused
