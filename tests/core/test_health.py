"""The health check: who meets whom, what is concluded, and in which words."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import combinations

import pytest

from elasticrun.core.health.plan import BLOCK, MAX_SLOTS, Evidence, Step, first_step, second_step
from elasticrun.core.health.table import check_table
from elasticrun.core.health.verdicts import (
    LinkFinding,
    NodeFinding,
    Verdict,
    judge,
)
from elasticrun.core.protocol.messages import (
    MAX_CHECKS,
    MAX_GROUP_NODES,
    MAX_GROUPS,
    MAX_SUMMARY_TEXT,
    GroupReport,
    NodeCheck,
    ProbeReport,
)
from tests.core.fleet import BANDWIDTH, FLOPS, KINDS, RATIO, Fleet, afflicted, blamed, is_fine, link, names

FINE = GroupReport("", BANDWIDTH, 1e-4)


def dead(*nodes: int) -> Fleet:
    return Fleet(dead=frozenset(f"n{node}" for node in nodes))


def cut(*pairs: tuple[int, int]) -> Fleet:
    return Fleet(cut=frozenset(link(f"n{a}", f"n{b}") for a, b in pairs))


def plan(fleet: Fleet, suspects: str, trusted: str = "") -> list[str]:
    """The slots of the second step, one word per group; nodes have names of one letter."""
    evidence = fleet.check(list(suspects), list(trusted))
    steps = [step for step, _ in evidence.steps[1:]]
    return [" ".join("".join(group) for group in slot) for step in steps for slot in step.slots]


def observed(*groups: tuple[str, float]) -> Verdict:
    """The verdict on groups that met one after the other, with their bandwidths; 0.0: it failed."""
    nodes = tuple(sorted({node for names, _ in groups for node in names}))
    step = Step(nodes, tuple((tuple(names),) for names, _ in groups))
    told = {
        node: tuple(
            GroupReport(bandwidth=it) if it else GroupReport("timeout")
            for names, it in groups
            if node in names
        )
        for node in nodes
    }
    return judge(Evidence().after(step, {node: ProbeReport(1, groups=told[node]) for node in nodes}))


# Steps


@pytest.mark.parametrize(
    ("suspects", "trusted", "nodes", "groups"),
    [
        ("", "", "", ""),
        ("a", "", "a", ""),
        ("ab", "", "ab", "ab"),
        ("abc", "", "abc", "abc"),
        ("abcd", "", "abcd", "ab cd"),
        ("abcde", "", "abcde", "ab cde"),
        ("a", "xyz", "ax", "ax"),
        ("ab", "xyz", "abxy", "ax by"),
        ("ab", "x", "abx", "axb"),
        ("abc", "x", "abcx", "ax bc"),
        ("abcd", "x", "abcdx", "ax bcd"),
        ("abca", "axx", "abcx", "ax bc"),  # a suspect is not trusted, and nobody is asked twice
    ],
)
def test_first_step(suspects: str, trusted: str, nodes: str, groups: str) -> None:
    step = first_step(list(suspects), list(trusted))
    assert "".join(step.nodes) == nodes
    assert step.slots == ((tuple(tuple(group) for group in groups.split()),) if groups else ())


def test_a_step_knows_the_groups_of_a_node() -> None:
    step = Step(("a", "b", "c"), ((("a", "b"),), (("c", "a"),)))
    assert step.groups_of("a") == (("a", "b"), ("c", "a"))
    assert step.groups_of("c") == (("c", "a"),)
    assert step.groups_of("d") == ()
    assert [step.slots_of(node) for node in "abcd"] == [(0, 1), (0,), (1,), ()]


@pytest.mark.parametrize(
    ("faulty", "suspects", "trusted", "slots"),
    [
        ("", "abcd", "", []),
        ("a", "ab", "", ["ba"]),  # nobody else: once more, from the other end
        ("a", "abc", "", ["ab", "bc", "ac"]),
        ("a", "abcd", "", ["ac bd", "ad bc"]),  # h divides u: the second pass is shifted
        ("a", "abcdefgh", "", ["ac bd", "ae bf"]),  # no helper serves twice if there are enough
        ("d", "abcde", "", ["ca db", "ea cb", "da eb"]),  # three suspects, two helpers
        ("ac", "abcdef", "", ["ae bf", "ce df", "af be", "cf de"]),
        ("ac", "abcd", "", ["ba dc", "ad bc", "ac db"]),  # nobody is known good: everybody meets
        ("bdf", "abcdef", "", ["ba dc fe", "ad bf ce", "af de bc", "ae fc db", "ac eb fd"]),
        (
            "abcdefghi",
            "abcdefghi",
            "",
            ["ba dc fe gh", "ad bc eh gi", "ac db hi fg", "ei hf", "eg if"],
        ),  # blocks: 4, 5
        (
            "abcdefghij",
            "abcdefghij",
            "",
            ["ba dc fe hg ji", "ad bf ce gj hi", "af de bc gi jh", "ae fc db", "ac eb fd"],
        ),  # 6, 4
        ("a", "a", "x", ["xa"]),
        ("a", "ab", "xyzw", ["ab xy", "ay xb"]),  # who is known good now is asked first
        ("a", "a", "xyzw", ["xa yz", "az xy", "ay zx"]),  # else two who were good earlier, and one another
        ("ab", "ab", "xy", ["xa yb", "ay xb", "ab yx"]),
    ],
)
def test_second_step(faulty: str, suspects: str, trusted: str, slots: list[str]) -> None:
    assert plan(Fleet(dead=frozenset(faulty)), suspects, trusted) == slots


def test_a_faulty_node_that_shows_itself_is_not_probed_again() -> None:
    assert plan(Fleet(silent=frozenset("a")), "ab") == []
    assert plan(Fleet(silent=frozenset("ac")), "abcd") == ["bd"]
    assert plan(Fleet(broken=frozenset("a")), "abcd") == ["bc", "bd"]
    assert plan(Fleet(silent=frozenset("ac"), dead=frozenset("e")), "abcdef") == ["fe bd", "ed fb", "eb df"]


def test_one_node_known_good_is_not_enough_and_joins_the_suspects() -> None:
    fleet = Fleet(dead=frozenset("a"), crooked=frozenset("c"))  # c and d reach each other, but c is faulty
    assert plan(fleet, "abcd") == ["ba", "bd", "ad"]
    assert blamed(fleet.verdict("abcd")) == {"a", "c"}


def test_too_many_suspects_for_two_helpers_meet_one_another() -> None:
    nodes = names(40)
    fleet = dead(*range(4, 40, 2))
    [_, (step, _)] = fleet.check(nodes).steps
    assert len(step.slots) == MAX_SLOTS
    verdict = fleet.verdict(nodes)
    assert blamed(verdict) == fleet.dead
    assert (len(verdict.good), verdict.undecided) == (22, ())


def test_a_step_fits_in_a_message() -> None:
    assert MAX_SLOTS <= MAX_GROUPS
    assert BLOCK <= MAX_GROUP_NODES
    assert BLOCK - 1 <= MAX_SLOTS


# Who is named


@pytest.mark.parametrize("count", [3, 4, 7, 16])
@pytest.mark.parametrize("one_sided", [False, True])
def test_one_faulty_node(count: int, one_sided: bool) -> None:
    nodes = names(count)
    for node in nodes:
        for kind in KINDS:
            verdict = afflicted({node: kind}, one_sided=one_sided).verdict(nodes)
            assert [found.node for found in verdict.faulty] == [node]
            assert verdict.good == tuple(name for name in nodes if name != node)


def test_two_faulty_nodes_of_eight() -> None:
    nodes = names(8)
    for pair in combinations(range(8), 2):
        verdict = dead(*pair).verdict(nodes)
        assert [found.node for found in verdict.faulty] == [nodes[node] for node in pair]
        assert len(verdict.good) == 6


@pytest.mark.parametrize("count", range(3, BLOCK + 1))
def test_every_set_of_faulty_nodes_is_named_if_two_are_good(count: int) -> None:
    for faulty in range(count - 1):
        for chosen in combinations(range(count), faulty):
            verdict = dead(*chosen).verdict(names(count))
            assert blamed(verdict) == {f"n{node}" for node in chosen}
            assert len(verdict.good) == count - faulty


@pytest.mark.parametrize("count", range(3, 11))
def test_every_single_broken_link_excludes_nobody(count: int) -> None:
    for pair in combinations(range(count), 2):
        fleet = cut(pair)
        verdict = fleet.verdict(names(count))
        assert len(verdict.good) == count
        assert all(
            cut(pair).cut <= {link(*it) for it in combinations(found.nodes, 2)} for found in verdict.bad_links
        )


def test_a_broken_link_to_the_second_witness_does_not_condemn() -> None:
    """n0 is dead, and its partner n1 cannot reach the first node that step 2 gives it."""
    fleet = Fleet(dead=frozenset(["n0"]), cut=frozenset([link("n1", "n3")]))
    verdict = fleet.verdict(names(8))
    assert blamed(verdict) == {"n0"}
    assert [found.nodes for found in verdict.bad_links] == [("n1", "n3")]


# In which words


def test_a_faulty_node_of_two_that_shows_itself() -> None:
    verdict = Fleet(broken=frozenset("b")).verdict("ab")
    assert verdict.faulty == (NodeFinding("b", "its self test failed: matmul gave a wrong result"),)
    assert verdict.undecided == (
        NodeFinding("a", "its self test is fine, but every node that it was to reach is faulty itself"),
    )
    assert verdict.summary == "0 of 2 checked nodes are good; faulty: b; undecided: a"
    verdict = Fleet(silent=frozenset("b")).verdict("ab")
    assert verdict.faulty == (NodeFinding("b", "it never reported how its probe ended"),)


def test_two_nodes_that_do_not_reach_each_other() -> None:
    verdict = Fleet(dead=frozenset("b")).verdict("ab")
    assert (verdict.good, verdict.faulty, verdict.bad_links) == ((), (), ())
    assert verdict.undecided == (
        NodeFinding(
            "a",
            "its self test and that of b are fine, but no all-gather between them worked: "
            "it is at fault, or b, or the link between them (a saw no answer)",
        ),
        NodeFinding(
            "b",
            "its self test and that of a are fine, but no all-gather between them worked: "
            "it is at fault, or a, or the link between them (a saw no answer)",
        ),
    )


def test_two_nodes_that_reach_each_other_the_second_time() -> None:
    first = first_step("ab")
    evidence = Evidence().after(first, Fleet(dead=frozenset("b")).reports(first))
    second = second_step(evidence, RATIO)
    assert second == Step(("b", "a"), ((("b", "a"),),))
    verdict = judge(evidence.after(second, Fleet().reports(second)))
    assert (verdict.good, verdict.undecided) == (("a", "b"), ())
    assert verdict.bad_links == (
        LinkFinding(
            ("a", "b"),
            "the all-gather between a and b failed, but worked when it was tried again (a saw no answer)",
        ),
    )
    assert not is_fine(verdict)
    assert verdict.summary == "2 of 2 checked nodes are good; bad links: a-b"


def test_a_condemned_node() -> None:
    verdict = Fleet(dead=frozenset("a")).verdict("abcd")
    assert verdict.faulty == (
        NodeFinding("a", "no all-gather with it worked, also not with c, d, which are good: a saw no answer"),
    )
    assert verdict.summary == "3 of 4 checked nodes are good; faulty: a"


def test_one_witness_is_too_few() -> None:
    verdict = Fleet(dead=frozenset("a"), crooked=frozenset("c")).verdict("a", "bc")
    assert [found.node for found in verdict.faulty] == ["c"]
    assert verdict.undecided == (
        NodeFinding(
            "a",
            "its all-gather with b, which is good, failed, and no second node known to be good tried: "
            "it is at fault, or its link to b (a saw no answer)",
        ),
    )


def test_nobody_reaches_anybody() -> None:
    verdict = Fleet(dead=frozenset("abc")).verdict("abc")
    assert verdict.undecided[0] == NodeFinding(
        "a",
        "its self test is fine, but no all-gather with b, c worked, none of which is known to be good: "
        "it is at fault, or they are, or the links between them (a saw no answer)",
    )
    assert [found.node for found in verdict.undecided] == ["a", "b", "c"]


def left(suspects: str, gone: str) -> Verdict:
    """The verdict on sound nodes, some of which left before they reported."""
    return judge(Fleet(silent=frozenset(gone)).check(suspects), gone=set(gone))


def test_who_left_is_neither_good_nor_faulty() -> None:
    verdict = left("abcd", "c")
    assert (verdict.good, verdict.faulty, verdict.undecided) == (("a", "b", "d"), (), ())
    assert verdict.gone == ("c",)
    assert verdict.summary == "3 of 3 checked nodes are good; gone before they were judged: c"


def test_who_left_after_it_was_found_faulty_is_not_judged() -> None:
    verdict = judge(Fleet(dead=frozenset("c"), slow=(("c", 9.0),)).check("abcd"), gone={"c"})
    assert verdict == Verdict(("a", "b", "d"), gone=("c",))


def test_who_met_only_nodes_that_left_was_not_judged_either() -> None:
    verdict = left("ab", "b")
    assert verdict.undecided == (
        NodeFinding(
            "a", "its self test is fine, but every node that it was to reach is faulty itself, or gone"
        ),
    )
    assert verdict.summary == "0 of 1 checked node is good; undecided: a; gone before they were judged: b"


def test_the_table_says_who_left() -> None:
    evidence = Fleet(silent=frozenset("c")).check("abcd")
    rows = check_table(evidence, judge(evidence, gone={"c"}))
    assert [(row.node, row.verdict) for row in rows] == [("c", "gone"), *((it, "good") for it in "abd")]
    assert rows[0].detail == "it left, or was lost, before it was judged"


def test_a_broken_link() -> None:
    verdict = Fleet(cut=frozenset([link("a", "b")])).verdict("abcd")
    reason = (
        "the link between a and b is bad: their all-gather failed, "
        "but each works with others (a saw no answer)"
    )
    assert verdict == Verdict(("a", "b", "c", "d"), bad_links=(LinkFinding(("a", "b"), reason),))


def test_a_broken_link_in_a_group_of_three() -> None:
    [found] = Fleet(cut=frozenset([link("c", "d")])).verdict("abcde").bad_links
    assert found.nodes == ("c", "d", "e")
    assert found.reason.startswith("one of the links between c, d and e is bad: ")
    [found] = Fleet(cut=frozenset([link("b", "c")])).verdict("abc").bad_links
    assert found.nodes == ("b", "c")


def test_a_group_of_three_that_works_pair_by_pair() -> None:
    first = first_step("abc")
    evidence = Evidence().after(first, Fleet(dead=frozenset("b")).reports(first))
    second = second_step(evidence, RATIO)
    assert second is not None
    [found] = judge(evidence.after(second, Fleet().reports(second))).bad_links
    assert found.reason == (
        "the all-gather between a, b and c failed, but worked when it was tried again (a saw no answer)"
    )


def test_a_node_alone_is_judged_by_its_self_test() -> None:
    verdict = Fleet().verdict("a")
    assert (verdict.good, is_fine(verdict), verdict.summary) == (("a",), True, "1 of 1 checked node is good")
    assert blamed(Fleet(broken=frozenset("a")).verdict("a")) == {"a"}
    assert judge(Evidence()) == Verdict(())


def test_only_the_first_line_of_an_error_is_repeated() -> None:
    step = first_step("ab")
    long = "x" * 1000 + "\ntraceback"
    verdict = judge(Evidence().after(step, {"a": ProbeReport(1, error=long)}))
    assert verdict.faulty[0].reason == "its self test failed: " + "x" * MAX_SUMMARY_TEXT
    assert verdict.faulty[1].reason == "it never reported how its probe ended"
    groups = (GroupReport(error=long),)
    verdict = judge(Evidence().after(step, {"a": ProbeReport(1, groups=groups), "b": ProbeReport(1)}))
    assert verdict.undecided[0].reason.endswith(f"({'x' * MAX_SUMMARY_TEXT})")


def test_a_report_that_is_too_short_is_a_failure_of_the_rest() -> None:
    step = first_step("ab")
    [meeting] = Evidence().after(step, {"a": ProbeReport(1, groups=(FINE,)), "b": ProbeReport(1)}).meetings
    assert meeting.error == "the probe of b ended before this all-gather"
    [meeting] = Evidence().after(step, {"a": ProbeReport(1, groups=(FINE,))}).meetings
    assert meeting.error == "b never reported"


def test_a_group_of_three_makes_no_witness() -> None:
    pair = observed(("ade", 0.0), ("ab", 0.0), ("db", 1.0), ("eb", 1.0))
    assert (blamed(pair), [found.node for found in pair.undecided]) == (set(), ["a"])
    assert blamed(observed(("ad", 0.0), ("ab", 0.0), ("db", 1.0))) == {"a"}


def test_a_helper_that_is_lost_in_the_second_step_is_no_witness() -> None:
    first = first_step("abcd")
    evidence = Evidence().after(first, Fleet(dead=frozenset("a")).reports(first))
    second = second_step(evidence, RATIO)
    assert second is not None
    verdict = judge(evidence.after(second, Fleet(dead=frozenset("a"), silent=frozenset("c")).reports(second)))
    assert blamed(verdict) == {"c"}  # only d speaks against a: b was not known to be good when they met
    assert verdict.good == ("b", "d")
    assert [found.node for found in verdict.undecided] == ["a"]


def test_a_helper_that_is_gone_is_not_asked_and_who_came_late_is_asked_again() -> None:
    """Node a was frozen in the first step, d is lost before the second, and the link of b and c is broken."""
    first = first_step("abcd")
    evidence = Evidence().after(first, Fleet(dead=frozenset("a")).reports(first))
    second = second_step(evidence, RATIO, gone="d")
    assert second == Step(("b", "a", "c"), ((("b", "a"),), (("b", "c"),), (("a", "c"),)))
    verdict = judge(evidence.after(second, Fleet(cut=frozenset([link("b", "c")])).reports(second)), gone="d")
    assert (verdict.good, blamed(verdict), verdict.undecided) == (("a", "b", "c"), set(), ())
    assert [found.nodes for found in verdict.bad_links] == [("a", "b"), ("b", "c")]


def test_a_node_is_no_witness_of_what_failed_before_it_proved_good() -> None:
    """As above, but d is lost in the second step: nobody can tell b and its link to c apart."""
    first = first_step("abcd")
    evidence = Evidence().after(first, Fleet(dead=frozenset("a")).reports(first))
    second = second_step(evidence, RATIO)
    assert second is not None
    fleet = Fleet(silent=frozenset("d"), cut=frozenset([link("b", "c")]))
    verdict = judge(evidence.after(second, fleet.reports(second)), gone="d")
    assert (verdict.good, blamed(verdict), verdict.gone) == (("a", "c"), set(), ("d",))
    [found] = verdict.undecided
    assert found.node == "b"
    assert found.reason.startswith("its all-gather with c, which is good, failed, and no second node known")


def test_pairs_stay_together_in_the_second_step_when_others_are_gone() -> None:
    nodes = names(20)
    evidence = Evidence().after(first_step(nodes), dead(*range(0, 20, 2)).reports(first_step(nodes)))
    step = second_step(evidence, RATIO, gone=("n0", "n4"))
    assert step is not None
    assert {"n0", "n4"}.isdisjoint(step.nodes)
    met = {frozenset(group) for slot in step.slots for group in slot}
    assert all(link(f"n{it}", f"n{it + 1}") in met for it in range(0, 20, 2) if it not in (0, 4))


# Slow nodes and links


@pytest.mark.parametrize("slowness", [1.81, 2.0, 50.0])
@pytest.mark.parametrize("count", [2, 3, 4, 7, 16])
def test_a_slow_node(count: int, slowness: float) -> None:
    verdict = Fleet(slow=(("n1", slowness),)).verdict(names(count))
    [found] = verdict.stragglers
    assert found.node == "n1"
    assert found.reason == (
        f"its matmul is {slowness:.1f} times slower than the median ({1 / slowness:.3g} of 1 TFLOP/s)"
    )
    assert verdict.good == names(count)
    assert verdict.summary.endswith("are good; slow: n1")


def test_nobody_is_slow_within_the_tolerance_or_without_a_measurement() -> None:
    assert is_fine(Fleet(slow=(("n1", 1.79),)).verdict(names(4)))
    step = first_step("ab")
    report = ProbeReport(1, groups=(FINE,))
    assert is_fine(judge(Evidence().after(step, dict.fromkeys("ab", report))))


def test_a_faulty_node_sets_no_standard_and_is_not_called_slow() -> None:
    fleet = Fleet(crooked=frozenset("b"), slow=(("b", 0.1), ("c", 2.0)))
    assert [found.node for found in fleet.verdict("abcd").stragglers] == ["c"]
    fleet = Fleet(crooked=frozenset("b"), slow=(("b", 5.0),), slow_links=((link("a", "b"), 9.0),))
    verdict = fleet.verdict("abcd")
    assert (verdict.stragglers, verdict.slow_links) == ((), ())


@pytest.mark.parametrize(
    ("first", "again", "slow"),
    [
        ((1.0, 2.0), (1.0, 1.0), []),  # b was held up
        ((1.0, 2.0), (1.0, 2.0), ["b"]),
        ((1.3, 2.0), (1.0, 2.0), ["b"]),  # a was held up, and b is slow
        ((1.0, 1.39), None, []),  # nobody seems slow: no second look
    ],
)
def test_who_seems_slow_is_measured_again_and_the_faster_measurement_counts(
    first: tuple[float, float], again: tuple[float, float] | None, slow: list[str]
) -> None:
    """How many times slower than usual a and b were."""
    step = first_step("ab")
    evidence = Evidence().after(step, Fleet(slow=tuple(zip("ab", first, strict=True))).reports(step))
    second = second_step(evidence, RATIO)
    assert second == (Step(("a", "b")) if again else None)
    if second is not None and again is not None:
        fleet = Fleet(slow=tuple(zip("ab", again, strict=True)))
        evidence = evidence.after(second, fleet.reports(second))
    assert [found.node for found in judge(evidence).stragglers] == slow


def test_slow_nodes_are_measured_again_beside_suspects() -> None:
    fleet = Fleet(dead=frozenset("a"), slow=(("g", 2.0),))
    [_, (step, _)] = fleet.check("abcdefghij").steps
    assert [" ".join("".join(group) for group in slot) for slot in step.slots] == plan(
        Fleet(dead=frozenset("a")), "abcdefghij"
    )
    assert "g" in step.nodes
    assert "h" not in step.nodes


def test_who_does_not_answer_the_second_measurement_is_faulty() -> None:
    first = first_step("ab")
    evidence = Evidence().after(first, Fleet(slow=(("b", 2.0),)).reports(first))
    second = second_step(evidence, RATIO)
    assert second is not None
    verdict = judge(evidence.after(second, Fleet(silent=frozenset("b")).reports(second)))
    assert blamed(verdict) == {"b"}
    assert verdict.good == ("a",)


def test_the_best_of_two_measurements_counts() -> None:
    first = first_step("abcd")
    evidence = Evidence().after(first, Fleet(dead=frozenset("a"), slow=(("b", 9.0),)).reports(first))
    second = second_step(evidence, RATIO)
    assert second is not None
    assert judge(evidence.after(second, Fleet(dead=frozenset("a")).reports(second))).stragglers == ()
    evidence = Evidence().after(first, Fleet(dead=frozenset("a")).reports(first))
    later = Fleet(dead=frozenset("a"), slow=(("b", 9.0),)).reports(second)
    assert judge(evidence.after(second, later)).stragglers == ()


def test_a_slow_link() -> None:
    verdict = Fleet(slow_links=((link("a", "b"), 4.0),)).verdict("abcd")
    reason = (
        "the all-gather between a and b is 4.0 times slower than the median (2.5 of 10 GB/s), "
        "for which a or b or the link is the reason"
    )
    assert verdict == Verdict(tuple("abcd"), slow_links=(LinkFinding(("a", "b"), reason),))
    assert verdict.summary == "4 of 4 checked nodes are good; slow links: a-b"
    assert not is_fine(verdict)


def test_the_only_group_has_no_standard() -> None:
    for nodes in ("ab", "abc"):
        links = tuple((link(*pair), 9.0) for pair in combinations(nodes, 2))
        assert is_fine(Fleet(slow_links=links).verdict(nodes))


def test_a_group_of_three_may_take_twice_the_time() -> None:
    assert is_fine(Fleet().verdict("abcde"))
    [found] = Fleet(slow_links=((link("c", "d"), 3.0),)).verdict("abcde").slow_links
    assert found.nodes == ("c", "d", "e")
    assert found.reason.endswith("for which c or d or e or one of the links is the reason")


def test_a_group_of_three_sets_no_standard() -> None:
    assert is_fine(observed(("ab", 1.0), ("cde", 10.0)))
    assert is_fine(observed(("ab", 1.0), ("cd", 1.0), ("efg", 10.0), ("hij", 10.0), ("klm", 10.0)))


def test_two_slow_pairs_with_fast_nodes_make_a_straggler_and_nothing_less_does() -> None:
    fast = (("bx", 10.0), ("dy", 10.0), ("ez", 10.0))
    verdict = observed(*fast, ("ab", 2.0), ("ad", 1.0))
    assert [found.node for found in verdict.stragglers] == ["a"]
    assert verdict.stragglers[0].reason.startswith("its network is 5.0 times slower than the median ")
    for less in (
        [("ab", 1.0)],
        [("ab", 1.0), ("ade", 1.0)],  # of three, it could be each
        [("ab", 1.0), ("ac", 1.0)],  # nobody knows c
        [("ab", 1.0), ("ad", 1.0), ("ae", 10.0)],  # a can be fast
    ):
        verdict = observed(*fast, *less)
        assert verdict.stragglers == ()
        assert len(verdict.slow_links) >= 1


def test_who_is_fast_elsewhere_is_not_the_reason_of_a_slow_link() -> None:
    fleet = Fleet(dead=frozenset("a"), slow_links=((link("b", "d"), 3.0),))  # b meets d and f in step 2
    [found] = fleet.verdict("abcdefgh").slow_links
    assert found.reason.endswith("for which the link is the reason")


def test_a_node_with_a_slow_network_and_slow_compute() -> None:
    links = tuple((link("b", other), 4.0) for other in "acdefgh")
    fleet = Fleet(dead=frozenset("a"), slow_links=links, slow=(("b", 2.5),))
    verdict = fleet.verdict("abcdefgh")
    assert verdict.stragglers == (
        NodeFinding(
            "b",
            "its matmul is 2.5 times slower than the median (0.4 of 1 TFLOP/s); "
            "its network is 4.0 times slower than the median (2.5 of 10 GB/s)",
        ),
    )
    assert verdict.slow_links == ()


def engines(
    flops: dict[str, float], engine: Callable[[str], str], transport: Callable[[str], str] = lambda _: "tcp"
) -> Evidence:
    """Nodes that are pairs in the order given, and what each was measured with; names say what bandwidth."""
    step = first_step(tuple(flops))
    return Evidence().after(
        step,
        {
            node: ProbeReport(
                1,
                matmul_flops=flops[node],
                groups=(replace(FINE, transport=transport(node)),),
                engine=engine(node),
            )
            for node in flops
        },
    )


def test_only_nodes_with_the_same_engine_are_compared() -> None:
    flops = {"t1": 1e11, "p1": 8e7, "t2": 9e10, "p2": 4e7, "p3": 8e7, "t3": 1e10}
    verdict = judge(engines(flops, lambda node: {"t": "torch/cpu", "p": "python3.11"}[node[0]]))
    assert [(found.node, found.reason) for found in verdict.stragglers] == [
        ("p2", "its matmul is 2.0 times slower than the median (40 of 80 MFLOP/s)"),
        ("t3", "its matmul is 9.0 times slower than the median (10 of 90 GFLOP/s)"),
    ]
    assert verdict.engines == (
        "the nodes compute with different engines, and speeds were compared only within one engine "
        "(torch/cpu: t1, t2, t3; python3.11: p1, p2, p3)"
    )
    assert not is_fine(verdict)


def test_the_only_node_with_its_engine_is_never_slow() -> None:
    verdict = judge(engines({"a": 1e11, "b": 1e7}, lambda node: "" if node == "b" else "torch/cpu"))
    assert verdict.stragglers == ()
    assert verdict.engines.endswith("(torch/cpu: a; unknown: b)")
    assert is_fine(judge(engines({"a": 1e11, "b": 1e11}, lambda node: "torch/cpu")))


def test_only_groups_with_the_same_transport_are_compared() -> None:
    def by(transport: str, nodes: str, bandwidth: float) -> tuple[str, GroupReport]:
        return nodes, GroupReport("", bandwidth, 1e-4, transport)

    fast = [by("nccl", "ab", 100e9), by("nccl", "cd", 100e9), by("nccl", "ef", 100e9)]
    assert is_fine(seen(*fast, by("tcp", "gh", 1e9)))
    [found] = seen(*fast, by("tcp", "gh", 1e9), by("tcp", "ij", 1e9), by("tcp", "kl", 1e8)).slow_links
    assert found.reason.startswith(
        "the all-gather between k and l is 10.0 times slower than the median (0.1 of 1 GB/s), "
    )
    assert is_fine(seen(*fast, by("tcp", "ghi", 1e6))), "no pair says how fast that should be"


def seen(*meetings: tuple[str, GroupReport]) -> Verdict:
    """What follows if each group, one slot after the other, is as its report says."""
    told: dict[str, list[GroupReport]] = {}
    for group, report in meetings:
        for node in group:
            told.setdefault(node, []).append(report)
    step = Step(tuple(told), tuple((tuple(group),) for group, _ in meetings))
    return judge(Evidence().after(step, {node: ProbeReport(1, groups=tuple(told[node])) for node in told}))


# The table


def test_the_table_says_with_what_each_node_was_measured() -> None:
    evidence = engines({"a": 1e11, "b": 1e11}, lambda _: "torch/cpu", lambda _: "gloo")
    assert [row.engine for row in check_table(evidence, judge(evidence))] == ["torch/cpu gloo"] * 2
    evidence = engines({"a": 1e11}, lambda _: "torch/cpu")
    assert [row.engine for row in check_table(evidence, judge(evidence))] == ["torch/cpu"]


def test_the_table_has_the_worst_first() -> None:
    fleet = Fleet(
        dead=frozenset("d"),
        cut=frozenset([link("e", "f")]),
        slow=(("g", 4.0),),
    )
    evidence = fleet.check("abcdefghij")
    verdict = judge(evidence)
    rows = check_table(evidence, verdict)
    assert [row.node for row in rows] == list("dgefabchij")
    assert [row.verdict for row in rows] == ["faulty", "straggler"] + ["good"] * 8
    assert rows[0] == NodeCheck("d", FLOPS, 0.0, 0.0, "faulty", verdict.faulty[0].reason)
    assert rows[1] == NodeCheck("g", FLOPS / 4, BANDWIDTH, 1e-4, "straggler", verdict.stragglers[0].reason)
    assert rows[2].detail == verdict.bad_links[0].reason
    assert rows[4] == NodeCheck("a", FLOPS, BANDWIDTH, 1e-4, "good")


def test_the_table_is_cut_after_the_worst() -> None:
    nodes = names(MAX_CHECKS + 10)
    evidence = Fleet(silent=frozenset(nodes[-3:])).check(nodes)
    rows = check_table(evidence, judge(evidence))
    assert len(rows) == MAX_CHECKS
    assert [row.node for row in rows[:3]] == list(nodes[-3:])


# The cost


class Counted(str):
    """A name that counts how often it is looked up or compared."""

    uses = 0

    def __hash__(self) -> int:
        Counted.uses += 1
        return super().__hash__()

    def __eq__(self, other: object) -> bool:
        Counted.uses += 1
        return super().__eq__(other)


def uses(count: int, every: int) -> int:
    """What a check of ``count`` nodes costs, where one in ``every`` is faulty."""
    nodes = [Counted(node) for node in names(count)]
    fleet = Fleet(dead=frozenset(nodes[::every]))
    first = first_step(nodes)
    reports = fleet.reports(first)
    Counted.uses = 0
    evidence = Evidence().after(first, reports)
    second = second_step(evidence, RATIO)
    assert second is not None
    spent = Counted.uses
    reports = fleet.reports(second)
    Counted.uses = 0
    evidence = evidence.after(second, reports)
    check_table(evidence, judge(evidence))
    return spent + Counted.uses


@pytest.mark.parametrize("every", [1, 2, 3, 50])
def test_the_cost_grows_no_faster_than_the_number_of_nodes(every: int) -> None:
    assert uses(1200, every) < 4.5 * uses(300, every)
