"""Real probe children on the loopback: what they find, together and when peers fail."""

from __future__ import annotations

import contextlib
import json
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from elasticrun.probe import program
from tests.probe.harness import (
    DEADLINE,
    FULL,
    Children,
    Result,
    assert_fine,
    group,
    lines,
    probe_settings,
    results,
)
from tests.support.ports import free_port

#: Probes of one host wait for one another, so tests of them do not run side by side.
pytestmark = pytest.mark.xdist_group("probes")


@pytest.mark.parametrize("names", ["ab", "abc"])
def test_nodes_without_torch_gather_over_tcp(children: Children, names: str) -> None:
    port = free_port()
    started = [children.start(node, [group(names, node, port)]) for node in names]
    for child in started:
        found = results(child)
        assert_fine(found)
        assert found[0]["engine"].startswith("python3")


def test_after_its_groups_a_node_computes_once_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Within this process, as other tests may have the host's turn for longer than a probe waits for it."""
    for turn in ("alone", "beside"):
        monkeypatch.setattr(program, turn, lambda _: contextlib.nullcontext(True))
    port = free_port()
    found: dict[str, list[Result]] = {node: [] for node in "ab"}

    def probe(node: str) -> None:
        settings = json.dumps(probe_settings(node, [group("ab", node, port)], timeout=240.0))
        around, take = program.Surroundings(), found[node].append
        program.Probe(program.parse_settings(settings), around, lambda it: take(dict(it))).run()

    with ThreadPoolExecutor() as pool:
        list(pool.map(probe, found))
    for before, _, after in found.values():
        assert after["error"] == ""
        assert after["matmul_flops"] >= before["matmul_flops"] > 0
        assert after["engine"] == before["engine"]


def test_where_there_is_no_time_once_is_enough(children: Children) -> None:
    (own, _) = lines(children.start("a", [group("ab", "a", free_port())], timeout=2.0))
    assert own["error"] == ""


def test_a_node_that_is_alone_tests_itself(children: Children) -> None:
    assert_fine(results(children.start("a", [], slots=0)), groups=0)


def test_a_peer_that_never_comes_costs_its_slot_only(children: Children) -> None:
    port = free_port()
    a = children.start("a", [group("xa", "a", free_port()), group("ab", "a", port, slot=1)], 9.0, 2)
    b = children.start("b", [group("bx", "b", free_port()), group("ab", "b", port, slot=1)], 9.0, 2)
    visitor, host = results(a), results(b)
    assert visitor[1]["error"].startswith("no answer from x at 127.0.0.1:")
    assert "refused" in visitor[1]["error"]
    assert host[1]["error"].startswith("x did not come to b at 127.0.0.1:")
    assert_fine([visitor[0], visitor[2]])
    assert_fine([host[0], host[2]])


def test_who_came_hears_who_did_not(children: Children) -> None:
    port = free_port()
    a = children.start("a", [group("abx", "a", port)], 10.0)
    b = children.start("b", [group("abx", "b", port)], 10.0)
    told = [results(child)[1]["error"] for child in (a, b)]
    assert told == [f"x did not come to a at 127.0.0.1:{port} in time"] * 2


@pytest.mark.parametrize("faulty", ["a", "b"])
def test_nobody_waits_for_a_node_that_failed_its_self_test(children: Children, faulty: str) -> None:
    port = free_port()
    started = {
        node: children.start(
            node, [group("ab", node, port)], ELASTICRUN_PROBE_FAULT="compute" if node == faulty else ""
        )
        for node in "ab"
    }
    found = {node: results(child) for node, child in started.items()}
    assert [result["error"] for result in found.pop(faulty)] == [
        "the CPU computes wrong results: a matrix product failed its check"
    ]
    ((own, together),) = found.values()
    assert own["error"] == ""
    assert together["error"] == f"{faulty} failed its self test"


def test_damaged_data_is_found_by_the_peer(children: Children) -> None:
    port = free_port()
    wrong = children.start("a", [group("ab", "a", port)], ELASTICRUN_PROBE_FAULT="wrong")
    good = children.start("b", [group("ab", "b", port)])
    assert results(good)[1]["error"] == "what a sent arrived damaged"
    assert results(wrong)[0]["error"] == ""


def test_a_node_can_be_kept_out_of_the_network(children: Children) -> None:
    port = free_port()
    away = children.start("a", [group("ab", "a", port)], 2.0, ELASTICRUN_PROBE_FAULT="network")
    good = children.start("b", [group("ab", "b", port)], 2.0)
    assert "ELASTICRUN_PROBE_FAULT=network" in results(away)[1]["error"]
    assert "no answer from a" in results(good)[1]["error"]


def test_a_crash_is_a_signal_and_leaves_no_result(children: Children) -> None:
    child = children.start("a", [], slots=0, ELASTICRUN_PROBE_FAULT="crash")
    written, _ = child.communicate(timeout=DEADLINE)
    assert (child.returncode, written) == (-signal.SIGSEGV, "")


def test_an_unknown_drill_is_refused(children: Children) -> None:
    (own,) = results(children.start("a", [], slots=0, ELASTICRUN_PROBE_FAULT="fire"))
    assert own["error"].startswith("ELASTICRUN_PROBE_FAULT=fire is not valid: give compute")


def test_a_torch_that_cannot_be_imported_is_a_fault(children: Children, tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("print('chatter')\nraise ImportError('no libtorch.so')\n")
    child = children.start("a", [], slots=0, PYTHONPATH=str(tmp_path))
    (own,) = results(child)  # what torch prints does not get between the results
    assert own["error"] == "torch cannot be imported: no libtorch.so"


def test_the_modules_of_the_probe_hide_no_others(children: Children, tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("import compute\n")
    (own,) = results(children.start("a", [], slots=0, PYTHONPATH=str(tmp_path)))
    assert own["error"] == "torch cannot be imported: No module named 'compute'"


@pytest.mark.torch
def test_nodes_with_torch_gather_over_gloo_on_one_port_slot_after_slot(children: Children) -> None:
    port = free_port()
    names = "abc"
    groups = {node: [group(names, node, port)] for node in names}
    for node in "ab":
        groups[node].append(group("ab", node, port, slot=1))
    started = [children.start(node, groups[node], slots=2, python=FULL) for node in names]
    for node, child in zip(names, started, strict=True):
        assert_fine(results(child), len(groups[node]), "gloo")


@pytest.mark.torch
def test_damaged_data_is_found_over_gloo(children: Children) -> None:
    port = free_port()
    wrong = children.start("b", [group("ab", "b", port)], python=FULL, ELASTICRUN_PROBE_FAULT="wrong")
    good = children.start("a", [group("ab", "a", port)], python=FULL)
    assert results(good)[1]["error"] == "what b sent arrived damaged"
    assert results(wrong)[0]["error"] == ""


@pytest.mark.torch
def test_nodes_with_and_without_torch_understand_each_other(children: Children) -> None:
    port = free_port()
    started = [
        children.start("a", [group("ab", "a", port)], python=FULL),
        children.start("b", [group("ab", "b", port)]),
    ]
    for child in started:
        assert_fine(results(child))
