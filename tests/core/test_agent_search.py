"""An agent that meets masters of which none can lead, and when it has looked for long enough."""

from __future__ import annotations

import pytest

from elasticrun.core.agent.events import AgentTick, GroupGone, LinkDown, LinkUp, Prepared, WorkerFinished
from elasticrun.core.agent.events import Directed as Told
from elasticrun.core.membership.quorum import FOUNDING_PATIENCE, TAKEOVER_DELAY, longest_stay, walk
from elasticrun.core.protocol.messages import Leave, StopRound
from elasticrun.errors import ExitCode
from tests.core.build import Agent, start

TWO = {"join_timeout": 100.0, "endpoints": 2, "master_timeout": 1e6}
STAY, GAP = 18.0, 4.0


def listed_agent(**terms: float) -> Agent:
    """Ready at 0 s, with the master of epoch 1; two hosts are listed."""
    agent = Agent(**{**TWO, **terms})
    agent.do(Prepared(7001), LinkUp(1))
    return agent


def hop(agent: Agent, epoch: int, stay: float = STAY, gap: float = GAP) -> bool:
    """The master goes, and another one welcomes the agent; whether this ends it."""
    agent.now += stay
    agent.do(LinkDown("stepped down"), AgentTick())
    agent.now += gap
    agent.do(LinkUp(epoch))
    return agent.machine.state.departure is not None


def hops(agent: Agent, first: int = 2, **times: float) -> float:
    """When it has ended, hopping on for at most 1,000 s."""
    epoch = first
    while agent.now < 1000 and not hop(agent, epoch, **times):
        epoch += 1
    return agent.now


def test_a_node_that_no_master_can_use_ends_within_its_bound() -> None:
    agent = listed_agent()
    agent.do(Told(StopRound(1, 1, 4, "not part of it")))
    ended = hops(agent)
    assert TWO["join_timeout"] < ended <= TWO["join_timeout"] + longest_stay(2) + walk(2)
    assert agent.finish.exit_status == ExitCode.RENDEZVOUS_TIMEOUT
    assert agent.finish.outcome is None
    assert agent.finish.reason == (
        "for 110 s no master could form a world, as too few nodes of the last one are left, and a host that"
        " lost its state is a new node: start the job anew, with a --state-dir on each host that survives"
    )
    assert isinstance(agent.sent()[0], Leave)


def test_a_job_that_never_began_is_told_otherwise() -> None:
    agent = listed_agent()
    assert hops(agent) < 1000
    assert "not all hosts of --rdzv-endpoint were here" in agent.finish.reason


def test_a_short_join_timeout_leaves_each_master_its_patience() -> None:
    agent = listed_agent(join_timeout=1.0)
    assert not hop(agent, 2) and not hop(agent, 3)
    assert longest_stay(2) < hops(agent, 4) <= 2 * longest_stay(2) + walk(2)


def test_one_endpoint_has_no_search() -> None:
    assert hops(listed_agent(endpoints=1)) >= 1000


@pytest.mark.parametrize("count", range(2, 9))
def test_no_master_has_more_patience_than_the_longest_stay(count: int) -> None:
    assert walk(count) == TAKEOVER_DELAY * (count + 1)
    assert longest_stay(count) > max(FOUNDING_PATIENCE, walk(count) * 2 ** (count - 1))


def test_a_spare_of_a_master_that_leads_waits_for_ever() -> None:
    agent = listed_agent()
    assert not hop(agent, 2, stay=5000.0)
    assert agent.machine.next_deadline() is None
    lost, epoch = 5000.0, 3
    while not hop(agent, epoch):  # counted anew from when that master was lost
        epoch += 1
    assert TWO["join_timeout"] < agent.now - lost <= TWO["join_timeout"] + longest_stay(2) + walk(2)


def test_streams_to_one_master_are_one_stay() -> None:
    agent = listed_agent()
    for _ in range(100):
        assert not hop(agent, 1)  # 2,200 s in which the network breaks each stream
    assert not hop(agent, 2)


def test_time_without_a_master_is_not_counted_beyond_the_walk() -> None:
    agent = listed_agent()
    for epoch in range(2, 8):
        assert not hop(agent, epoch, stay=1.0, gap=600.0)


def test_what_runs_here_begins_the_search_anew() -> None:
    agent = listed_agent()
    for epoch in range(2, 6):
        assert not hop(agent, epoch)
    agent.do(Told(start(0, epoch=5)))
    for epoch in range(6, 30):
        assert not hop(agent, epoch)  # its workers go on, whoever the master is
    agent.do(WorkerFinished(0, 0), WorkerFinished(0, 1))
    agent.do(Told(StopRound(29, 2, 0, "over")), GroupGone(0, 7002))
    begun = agent.now
    assert not hop(agent, 30)
    hops_on = 31
    while not hop(agent, hops_on):
        hops_on += 1
    assert agent.now - begun > TWO["join_timeout"]


def test_a_first_master_that_comes_late_is_not_held_against_anybody() -> None:
    agent = Agent(**TWO)
    agent.do(Prepared(7001))
    agent.now = 5000.0
    agent.do(LinkUp(1))
    assert not hop(agent, 2)


def test_a_welcome_without_a_loss_before_it_is_another_master() -> None:
    agent = listed_agent()
    agent.now = 30.0
    agent.do(LinkUp(2))
    assert agent.machine.state.departure is None
