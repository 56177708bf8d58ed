"""Whether a world forms, and with whom: one decision with its reason, from facts that are given."""

from __future__ import annotations

from elasticrun.config import HealthCheckMode, HealthConfig
from elasticrun.core.health.candidates import Candidates
from elasticrun.core.health.checkup import HealthBook
from elasticrun.core.job.world import Choice, Decision, Step, Terms, decide_world
from elasticrun.core.membership.nodes import Node
from elasticrun.core.membership.quorum import Quorum
from elasticrun.core.membership.rendezvous import WorldLimits
from elasticrun.core.protocol.messages import AgentPhase, AgentStatus
from tests.core.build import info

TERMS = Terms(WorldLimits(2, 3), HealthConfig(mode=HealthCheckMode.OFF), (), is_first=True, is_known=False)
CHECKED = TERMS._replace(health=HealthConfig(mode=HealthCheckMode.AUTO))


def candidates(names: str, endpoints: int = 1, doubtful: str = "") -> Candidates:
    """Nodes that are ready; the check could not tell of those that are doubtful."""
    nodes, book = dict[str, Node](), HealthBook(doubtful=dict.fromkeys(doubtful, "who knows"))
    found = Candidates(nodes, Quorum(endpoints), book)
    for number, name in enumerate(names, 1):
        nodes[name] = Node(info(name), AgentStatus(1, AgentPhase.READY), number, number)
        found.hear(nodes[name])
        found.add(nodes[name])
    return found


def choose() -> Choice:
    return Choice(("b", "a"), "because")


def never() -> Choice:
    raise AssertionError("nobody is to be chosen")


def test_enough_nodes_form_a_world() -> None:
    decision = decide_world(candidates("ab"), TERMS, held=1, calls=False, choose=choose)
    assert decision == Decision(Step.FORM, "because", ("b", "a"))
    assert decision.obstacle == ""


def test_too_few_nodes_wait() -> None:
    assert decide_world(candidates("a"), TERMS, held=0, calls=True, choose=never).step is Step.TOO_FEW


def test_nobody_waits_for_imports_if_there_is_no_world_without_them() -> None:
    assert decide_world(candidates("a"), TERMS, held=1, calls=True, choose=never).step is Step.ADMIT_HELD
    assert decide_world(candidates("ab", 2), TERMS, 1, calls=False, choose=never).step is Step.ADMIT_HELD


def test_a_world_waits_for_the_last_call() -> None:
    assert decide_world(candidates("ab"), TERMS, held=0, calls=True, choose=never).step is Step.LAST_CALL


def test_a_master_without_votes_leads_nobody() -> None:
    decision = decide_world(candidates("ab", endpoints=2), TERMS, held=0, calls=False, choose=never)
    assert decision.step is Step.NO_QUORUM
    assert decision.obstacle == decision.reason != ""


def test_nodes_are_checked_first() -> None:
    decision = decide_world(candidates("ab"), CHECKED, held=0, calls=False, choose=never)
    assert decision == Decision(Step.CHECK, nodes=("a", "b"))


def test_too_few_healthy_nodes_wait_for_another_one() -> None:
    doubted = candidates("ab", doubtful="ab")
    assert decide_world(doubted, CHECKED, held=0, calls=False, choose=never).step is Step.TOO_FEW_HEALTHY


def test_nodes_that_do_not_fit_together_wait() -> None:
    def misfit() -> Choice:
        return Choice(("a", "b"), "because", "two chiefs")

    decision = decide_world(candidates("ab"), TERMS, held=0, calls=False, choose=misfit)
    assert (decision.step, decision.obstacle) == (Step.MISFIT, "two chiefs")
