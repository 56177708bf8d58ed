"""Advice, rule by rule: what it says with evidence, and that it says nothing without."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from elasticrun.core.accounting.activities import Activity, nothing
from elasticrun.core.accounting.summary import Summary
from elasticrun.core.advice.rules import RULES, Advice, View, advise
from elasticrun.core.history.history import History
from elasticrun.core.history.incidents import Kind, Sums
from elasticrun.core.history.views import NodeView
from elasticrun.core.protocol.chronicle import Place
from elasticrun.core.protocol.messages import AgentPhase
from elasticrun.core.protocol.round_progress import GpuFigures, NodeFigures
from elasticrun.core.protocol.status import JobPhase, JobStatus, NodeStatus
from elasticrun.core.whatif.measured import Measured
from tests.support.long_log import Settings, log

NONE = {kind: Sums() for kind in Kind}
CALM = Measured(1000.0, 2000.0, NONE, trained=900.0, productive=900.0)
GIB = 1 << 30
HOSTS = ("h0", "h1")


def spent(**micros: int) -> dict[Activity, int]:
    return nothing() | {Activity[name.upper()]: value for name, value in micros.items()}


def summary(job: Mapping[str, int] | None = None, total: Mapping[str, int] | None = None) -> Summary:
    return Summary(0, 0, {}, spent(**(total or {"productive": 100})), spent(**(job or {"productive": 100})))


def history(
    failures: Mapping[tuple[str, int], int] | None = None,
    slow: Mapping[str, float] | None = None,
    saves: Mapping[Place, int] | None = None,
    nodes: int = 2,
    workers: int = 2,
) -> History:
    found = History(nodes={f"n{i}": NodeView(f"n{i}", HOSTS[i % 2], workers) for i in range(nodes)})
    for (host, rank), times in (failures or {}).items():
        found.failed += times
        found.incidents.hosts[host] += times
        found.incidents.ranks[rank] += times
    found.incidents.slow.update(slow or {})
    found.totals.saves.update(saves or {})
    found.incidents.most_nodes = nodes
    return found


def figures(
    cpu: float = 1.0, cpus: int = 16, memory: float = 0.1, gpus: tuple[GpuFigures, ...] = ()
) -> NodeFigures:
    return NodeFigures(cpu, cpus, int(memory * 100), 100, 0.0, 0.0, gpus)


def gpu(busy: float | None = 0.9, memory: int = 1, limit: int = 100) -> GpuFigures:
    return GpuFigures("gpu0", busy, memory, limit)


def status(used: int, most: int) -> JobStatus:
    return JobStatus("job", JobPhase.RUNNING, 1, 1, 2, used, most)


def view(
    past: History | None = None,
    time: Summary | None = None,
    measured: Measured = CALM,
    now: JobStatus | None = None,
    shown: Mapping[str, NodeFigures] | None = None,
) -> View:
    return View(past or history(), time or summary(), measured, now, shown or {})


def said(seen: View) -> list[Advice]:
    return [advice for rule in RULES for advice in rule(seen)]


def with_incidents(kind: Kind, sums: Sums, **more: float) -> Measured:
    return replace(CALM, incidents={**NONE, kind: sums}, **more)  # type: ignore[arg-type]


SLOW = summary(total={"productive": 90, "slow": 10})
SAVING = replace(CALM, saves=150, stalled=150.0, incidents={**NONE, Kind.FAILED: Sums(2, 2.0, redone=1.0)})
RARE = replace(CALM, saves=2, stalled=0.2, incidents={**NONE, Kind.FAILED: Sums(8, 8.0, redone=400.0)})
WAITED = with_incidents(Kind.LOST, Sums(3, 70.0, waiting=60.0, coverable=60.0))
IMPORTING = with_incidents(Kind.FAILED, Sums(10, 100.0, imports=80.0))
REDONE = with_incidents(Kind.FAILED, Sums(10, 1.0, redone=100.0))
#: rule, what is seen, words of the finding, its figure
SAID = [
    (
        "straggler",
        view(history(slow={"n1": 1.8, "n0": 1.1}), SLOW),
        "n1 takes up to 1.8",
        0.1,
    ),
    ("memory", view(shown={"n0": figures(memory=0.95)}), "memory of n0 is 95 % full", 0.95),
    (
        "memory",
        view(shown={"n0": figures(gpus=(gpu(memory=99),))}),
        "memory of gpu0 of n0 is 99 % full",
        0.99,
    ),
    ("checkpoints", view(measured=SAVING), "too often", 6.0 / 29.3),
    ("checkpoints", view(measured=RARE), "too rarely", 450.0 / 4.6),
    ("spares", view(measured=WAITED), "waited 1 min 0 s for nodes, after 3 lost nodes", 60.0),
    (
        "threads",
        view(shown={"n0": figures(cpu=2.0)}),
        "each worker of n0 keeps 1.0 cores busy, and there are 8",
        1.0,
    ),
    ("input", view(shown={"n0": figures(15.8, gpus=(gpu(0.2), gpu(0.4)))}), "GPUs of n0 are busy 30 %", 0.3),
    ("host", view(history({("h0", 0): 2, ("h0", 1): 2, ("h1", 2): 1})), "4 of 5 failures were on h0", 4.0),
    (
        "rank",
        view(history({("h0", 3): 3, ("h1", 3): 2, ("h1", 1): 1})),
        "5 of 6 failures were of rank 3",
        5.0,
    ),
    ("budget", view(now=status(3, 4)), "3 of 4 restarts are used up", 0.75),
    ("imports", view(measured=IMPORTING), "imports are 80 % of the recoveries: 1 min 20 s", 0.8),
    (
        "storage",
        view(history(saves={Place.MEMORY: 3}, nodes=1)),
        "saved in the memory of one host only",
        900.0,
    ),
    ("unsaved", view(measured=REDONE), "1 min 40 s of work was done again", 100.0),
    (
        "hangs",
        view(time=summary(job={"productive": 900, "hung": 100})),
        "10 % of the time no step was made",
        0.1,
    ),
]


@pytest.mark.parametrize(
    ("rule", "seen", "words", "figure"), SAID, ids=[f"{it[0]}-{i}" for i, it in enumerate(SAID)]
)
def test_a_rule_speaks(rule: str, seen: View, words: str, figure: float) -> None:
    (advice,) = (it for it in said(seen) if it.rule == rule)
    assert words in advice.finding
    assert advice.figure == pytest.approx(figure, rel=0.1)
    assert advice.action
    assert advice.unit in ("share", "times", "failures", "seconds")
    assert advice.lost >= 0


SILENT = [
    ("straggler", view(history(slow={"n1": 2.0}))),
    ("straggler", view(history(), SLOW)),
    ("memory", view()),
    ("memory", view(shown={"n0": figures(memory=0.89, gpus=(gpu(memory=50),))})),
    ("memory", view(shown={"n0": NodeFigures(1.0, 4, 5, 0, 0.0, 0.0, (gpu(memory=5, limit=0),))})),
    ("checkpoints", view()),
    ("checkpoints", view(measured=replace(SAVING, saves=30, stalled=30.0))),
    ("checkpoints", view(measured=replace(SAVING, stalled=2.0, saves=20000))),
    ("checkpoints", view(measured=replace(SAVING, trained=0.0))),
    ("spares", view(measured=with_incidents(Kind.LOST, Sums(3, 70.0, waiting=5.0)))),
    ("spares", view(measured=with_incidents(Kind.CHANGED, Sums(3, 70.0, waiting=60.0)))),
    ("threads", view(shown={"n0": figures(cpu=8.0)})),
    ("threads", view(shown={"n0": figures(cpu=2.0, cpus=3)})),
    ("threads", view(shown={"n0": figures(cpu=2.0, gpus=(gpu(),))})),
    ("threads", view(shown={"gone": figures(cpu=2.0)})),
    ("threads", view(history(workers=0), shown={"n0": figures(cpu=2.0)})),
    ("input", view(shown={"n0": figures(15.8, gpus=(gpu(0.9),))})),
    ("input", view(shown={"n0": figures(2.0, gpus=(gpu(0.1),))})),
    ("input", view(shown={"n0": figures(15.8, gpus=(gpu(None),))})),
    ("input", view(shown={"n0": figures(15.8)})),
    ("input", view(shown={"n0": figures(15.8, cpus=0, gpus=(gpu(0.1),))})),
    ("host", view(history({("h0", 0): 2}))),
    ("host", view(history({("h0", 0): 3, ("h1", 1): 3}))),
    ("host", view(history({("h0", 0): 9}, nodes=1))),
    ("rank", view(history({("h0", 0): 9}, nodes=1))),
    ("rank", view(history({("h0", 0): 3, ("h1", 1): 3}))),
    ("budget", view()),
    ("budget", view(now=status(2, 4))),
    ("budget", view(now=status(0, 0))),
    ("imports", view(measured=with_incidents(Kind.FAILED, Sums(10, 100.0, imports=8.0)))),
    ("imports", view(measured=with_incidents(Kind.FAILED, Sums(10, 100.0, imports=20.0)))),
    ("storage", view(history(saves={Place.MEMORY: 3}))),
    ("storage", view(history(nodes=1))),
    ("storage", view(history(saves={Place.MEMORY: 3, Place.STORAGE: 1}, nodes=1))),
    ("unsaved", view(history(saves={Place.MEMORY: 3}), measured=REDONE)),
    ("unsaved", view()),
    ("hangs", view()),
    ("hangs", view(time=summary(job={"hung": 0}))),
    ("hangs", view(time=summary(job={"productive": 999, "hung": 1}))),
]


@pytest.mark.parametrize(("rule", "seen"), SILENT, ids=[f"{it[0]}-{i}" for i, it in enumerate(SILENT)])
def test_a_rule_without_evidence_is_silent(rule: str, seen: View) -> None:
    assert [it for it in said(seen) if it.rule == rule] == []


def test_imports_are_never_more_than_all() -> None:
    (advice,) = said(view(measured=with_incidents(Kind.FAILED, Sums(1, 0.0, imports=50.0))))
    assert (advice.rule, advice.figure) == ("imports", 1.0)


def test_every_rule_is_tested() -> None:
    assert {it[0] for it in SAID} == {it[0] for it in SILENT}
    assert len(RULES) == len({it[0] for it in SAID}) - 1  # host and rank are one rule


def test_advice_of_a_log_comes_with_the_largest_loss_first() -> None:
    found = History()
    for entry in log(Settings(rounds=60, stall=2.0, every=4)):
        found.take(entry)
    advice = advise(found, status(9, 10), {"node0": figures(memory=0.99)})
    assert {"checkpoints", "budget", "memory"} <= {it.rule for it in advice}
    assert [it.lost for it in advice] == sorted((it.lost for it in advice), reverse=True)


def test_nothing_asks_for_no_change() -> None:
    assert advise(History()) == ()
    assert advise(History(), now=5.0) == ()


def test_figures_of_nodes_are_those_of_the_status() -> None:
    full = figures(memory=0.95)
    said = tuple(NodeStatus(f"n{i}", i, AgentPhase.RUNNING, figures=it) for i, it in enumerate((full, None)))
    found = advise(history(), replace(status(0, 4), nodes=said))
    assert [advice.finding for advice in found] == ["the memory of n0 is 95 % full"]
    assert advise(history(), replace(status(0, 4), nodes=said), {"n0": figures()}) == ()
