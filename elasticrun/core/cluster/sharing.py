"""How the jobs of an operator share a cluster: what their objects say becomes a plan, and the plan shares.

Theory. ``plan.py`` decides from the share that each job was granted last, which is kept with the job, so
nothing is remembered here. Shares that are taken back are written at once. One that grows is granted only
when the units are free: each job holds the larger one of its share and of the replicas that it still has. As
a plan goes towards an ideal that depends on nothing but the jobs and the units, a plan that is made while an
earlier one is half carried out goes on where that one stopped.

Units that no host can give are no capacity. They show in replicas that do not run, for ``PATIENCE``: then the
job is limited to those that do, or waits if these are fewer than its least. It is asked again after a pause,
which doubles each time until the job has more than it was limited to.

Invariants, kept by ``tests/property/test_sharing.py``. No kind is granted beyond its units, with what jobs
still hold counted in. Carried out and decided anew, again and again, it comes to an end at which nothing
changes; on the way no job goes both up and down. Jobs that are suspended or over are granted nothing.

Of a job with several roles the share is how many nodes its elastic role has. All others are there, as many as
are wanted, while it has a share, and else none is. So what they take only adds to what the least needs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from enum import Enum
from functools import lru_cache

from elasticrun.core.cluster.curve import Curve, curve
from elasticrun.core.cluster.jobs import Job, Plan, Rules
from elasticrun.core.cluster.plan import plan
from elasticrun.dataclass import dataclass

#: Seconds for which replicas may not run before their units count as none.
PATIENCE = 300.0
#: Seconds until a job that was limited is asked again; the first pause and the longest.
FIRST_PAUSE, LONGEST_PAUSE = 600.0, 36_000.0
#: Seconds before another sentence of why a job waits is told: there may be hundreds that wait.
REWORD = 60.0
_SHOWN = 200  # characters of a sentence
_RULES = Rules()


class Stage(Enum):
    """What a job needs."""

    ACTIVE = "active"
    SUSPENDED = "suspended"
    OVER = "over"  # what it still holds will end
    FIXED = "fixed"  # what it holds stays, and is no capacity


#: Stages of jobs that are granted something, if only nothing.
_DECIDED = frozenset({Stage.ACTIVE, Stage.SUSPENDED})


@dataclass(frozen=True, slots=True)
class Limit:
    """How many nodes had room, when they were asked for."""

    nodes: int = 0
    until: float = 0.0  # it counts; in the past: it does not
    tries: int = 0  # how often in a row
    why: str = ""


@dataclass(frozen=True, slots=True)
class Granted:
    """The share of a job, as it is kept with the job."""

    nodes: int = 0  # 0: it waits
    why: str = ""
    at: float = 0.0  # when it was written
    limit: Limit = Limit()


@dataclass(frozen=True, slots=True)
class Ask:
    """One job, as its object tells. ``1 <= least <= most``. Its nodes are those of its elastic role."""

    name: str
    least: int
    most: int  # as many as its user wants
    kind: str = ""
    takes: int = 0  # units of each node; 0: of nothing that is shared
    besides: int = 0  # units of its other roles, as long as it runs
    priority: int = 0
    submitted: float = 0.0
    stage: Stage = Stage.ACTIVE
    granted: Granted | None = None  # None: it was never decided
    live: int = 0  # nodes that are meant to run
    held: int = 0  # units of all its replicas that are meant to run, or still end
    running: int = 0
    hindered: float | None = None  # since when not all run that are meant to
    hindrance: str = ""
    is_asked: bool = False  # somebody asks for more nodes right now: that has not to pay
    pods: tuple[tuple[str, int], ...] = ()  # units of a pod of each role, to be kept with the share
    measured: tuple[tuple[int, float], ...] = ()  # how much it did with so many nodes, in any unit

    @property
    def nodes(self) -> int:
        """What it has been granted; at first, what it has, and nothing as long as none of it runs."""
        at_first = self.live if self.running else 0
        return at_first if self.granted is None else self.granted.nodes

    def uses(self, nodes: int) -> int:
        """Units that it needs with so many nodes; one that waits needs none."""
        return self.besides + nodes * self.takes if nodes else 0

    @property
    def is_limited(self) -> bool:
        """Whether its pods have not found room, and that still counts."""
        return self.granted is not None and self.granted.limit.until > 0


@dataclass(frozen=True, slots=True)
class Grant:
    """A share to be written."""

    name: str
    before: int
    granted: Granted

    @property
    def is_change(self) -> bool:
        """Whether there are more nodes, or fewer."""
        return self.before != self.granted.nodes


@dataclass(frozen=True, slots=True)
class Shared:
    """What to write; and when to decide again even if nothing happens."""

    grants: tuple[Grant, ...]
    look_at: float | None


def share_out(asks: Sequence[Ask], units: Mapping[str, int], now: float, rules: Rules = _RULES) -> Shared:
    """Decide the shares of all jobs at ``now``, in seconds of the wall clock. Names are unique."""
    looks = list[float]()
    limits = {ask.name: ask.granted.limit for ask in asks if ask.granted is not None}
    asks = [_limited(ask, now, looks) for ask in asks]
    left = dict(units)
    for ask in asks:
        if ask.kind in left:
            left[ask.kind] = max(0, left[ask.kind] - _reserved(ask))
    jobs = [_job(ask, units.get(ask.kind, 0)) for ask in asks if _is_planned(ask)]
    found = plan(jobs, left, now, rules)
    reasons = {change.job: change.reason for change in found.changes}
    wanted = {ask.name: _wanted(ask, found, reasons) for ask in asks if ask.stage in _DECIDED}
    nodes = _as_room_allows(asks, {name: nodes for name, (nodes, _) in wanted.items()}, units)
    decided = [ask for ask in asks if ask.name in wanted]
    found_grants = [
        _grant(ask, limits.get(ask.name), nodes[ask.name], *wanted[ask.name], now, looks) for ask in decided
    ]
    grants = [grant for grant in found_grants if grant is not None]
    return Shared(tuple(grants), min((look for look in looks if look > now), default=None))


def _limited(ask: Ask, now: float, looks: list[float]) -> Ask:
    """The job with the limit that holds now. What is kept with it may have been written by anybody."""
    if ask.granted is None or ask.stage is not Stage.ACTIVE:
        return ask
    known, limit = ask.granted, ask.granted.limit
    if not now < limit.until <= now + LONGEST_PAUSE:
        limit = replace(limit, until=0.0)
    if ask.running >= ask.least and ask.running > limit.nodes:
        limit = Limit()
    if ask.hindered is not None and ask.takes and ask.running < known.nodes:
        due = max(ask.hindered, min(known.at, now)) + PATIENCE
        if now >= due:
            pause = min(FIRST_PAUSE * 2.0 ** min(limit.tries, 30), LONGEST_PAUSE)
            nodes = ask.running if ask.running >= ask.least else 0
            limit = Limit(nodes, now + pause, limit.tries + 1, ask.hindrance)
        looks.append(due)
    looks.append(limit.until)
    return replace(ask, granted=replace(known, limit=limit))


def _reserved(ask: Ask) -> int:
    """Units that no plan can give to others: of what stays, and of a job whose nodes take none."""
    if ask.stage is Stage.FIXED:
        return ask.held
    return max(ask.held, ask.besides) if ask.stage is Stage.ACTIVE and not ask.takes else 0


def _is_planned(ask: Ask) -> bool:
    """Whether the plan decides; else it has what it wants, or nothing."""
    is_barred = ask.granted is not None and ask.is_limited and not ask.granted.limit.nodes
    return ask.stage is Stage.ACTIVE and ask.takes > 0 and not is_barred


def _job(ask: Ask, units: int) -> Job:
    most = min(ask.most, units // ask.takes)  # of a curve no more is needed
    if ask.granted is not None and ask.is_limited:
        most = min(most, ask.granted.limit.nodes)
    most = max(ask.least, most)
    made = Job(
        ask.name,
        ask.least,
        most,
        _curve(most, ask.measured),
        ask.nodes,
        ask.submitted,
        ask.priority,
        ask.takes,
        ask.besides,
        ask.kind,
    )
    return replace(made, rescale=0.0) if ask.is_asked else made


@lru_cache(maxsize=256)
def _curve(most: int, measured: tuple[tuple[int, float], ...]) -> Curve:
    return curve(most, dict(measured))


def _wanted(ask: Ask, found: Plan, reasons: Mapping[str, str]) -> tuple[int, str]:
    """The nodes that a job should have, and why."""
    if ask.stage is Stage.SUSPENDED:
        return 0, "it is suspended"
    if not ask.takes:
        return ask.most, "it requests nothing of what is shared"
    if not _is_planned(ask):
        assert ask.granted is not None
        return 0, f"its pods did not run, and are tried again later: {ask.granted.limit.why}"
    if why := found.waiting.get(ask.name):
        return 0, f"{why}; a unit is {_unit(ask.kind)}"
    nodes = found.nodes[ask.name]
    if ask.granted is not None and ask.is_limited and nodes == ask.granted.limit.nodes < ask.nodes:
        return nodes, f"more did not run, and are tried again later: {ask.granted.limit.why}"
    return nodes, reasons.get(ask.name, "it keeps what it had")


def _unit(kind: str) -> str:
    return "a thousandth of a core" if kind == "cpu" else f"one {kind}"


def _as_room_allows(
    asks: Iterable[Ask], wanted: Mapping[str, int], units: Mapping[str, int]
) -> Mapping[str, int]:
    """The nodes to grant now: a job that is to have more gets them all at once, when there is room."""
    nodes = {ask.name: min(wanted[ask.name], ask.nodes) for ask in asks if ask.name in wanted}
    left = dict(units)
    for ask in asks:
        if ask.kind in left:
            left[ask.kind] -= max(ask.uses(nodes.get(ask.name, 0)), ask.held)
    growing = [ask for ask in asks if ask.name in wanted and wanted[ask.name] > nodes[ask.name]]
    for ask in sorted(growing, key=lambda ask: (ask.nodes > 0, ask.name)):
        more = max(0, ask.uses(wanted[ask.name]) - max(ask.uses(nodes[ask.name]), ask.held))
        if not ask.takes or more <= left.get(ask.kind, 0):
            nodes[ask.name] = wanted[ask.name]
            left[ask.kind] = left.get(ask.kind, 0) - more
    return nodes


def _grant(
    ask: Ask, limit: Limit | None, nodes: int, wanted: int, why: str, now: float, looks: list[float]
) -> Grant | None:
    """What to write, if there is something new. ``limit``: as it is kept."""
    if not nodes and wanted:
        why = f"it gets {wanted} nodes as soon as pods of other jobs have ended"
    known, why = ask.granted, why[:_SHOWN]
    if known is None:
        return Grant(ask.name, ask.live, Granted(nodes, why, now))
    if nodes != known.nodes or known.limit != limit:
        why = why if nodes != known.nodes or not nodes else known.why
        return Grant(ask.name, known.nodes, Granted(nodes, why, now, known.limit))
    if not nodes and why != known.why:
        again = min(known.at, now) + REWORD
        if now >= again or ask.stage is Stage.SUSPENDED:
            return Grant(ask.name, nodes, Granted(nodes, why, now, known.limit))
        looks.append(again)
    return None
