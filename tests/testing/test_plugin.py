"""The pytest plugin, as sessions of its users see it."""

from __future__ import annotations

import os
import re
import textwrap

import pytest

from elasticrun.testing import merging

pytest_plugins = ["pytester"]

QUIET = ("-p", "no:cacheprovider", "-p", "no:randomly")


def run(pytester: pytest.Pytester, source: str, *arguments: str) -> pytest.RunResult:
    """A session with one file of tests."""
    pytester.makepyfile(test_it=source)
    return pytester.runpytest_subprocess(*QUIET, *arguments)


def test_a_body_runs_on_every_rank_with_its_fixtures(pytester: pytest.Pytester) -> None:
    """As pytest does it anywhere: parameters, capture, logs, fixtures of a conftest, skip and xfail."""
    pytester.makeconftest(
        """
        import os, pytest
        @pytest.fixture
        def rank():
            yield int(os.environ["RANK"])
        """
    )
    result = run(
        pytester,
        """
        import logging, os, sys
        import pytest
        on_ranks = pytest.mark.distributed(nproc=2, backend=None)

        @on_ranks
        @pytest.mark.parametrize("number", [1, 2])
        def test_whole(number, rank, tmp_path, capsys, caplog, monkeypatch):
            assert os.environ["WORLD_SIZE"] == "2"
            print("number", number)
            assert capsys.readouterr().out == f"number {number}\\n"
            logging.getLogger("a").warning("logged")
            assert "logged" in caplog.text
            monkeypatch.setenv("A", "b")
            (tmp_path / "file").write_text(str(rank))
            assert (tmp_path / "file").read_text() == str(rank)

        @on_ranks
        def test_skipped():
            pytest.skip("not here")

        @on_ranks
        @pytest.mark.xfail(reason="known")
        def test_expected():
            assert False

        @on_ranks
        class TestInClass:
            def test_method(self, rank):
                assert rank < 2

        def test_plain():
            assert "RANK" not in os.environ
        """,
        "-rsx",
    )
    result.assert_outcomes(passed=4, skipped=1, xfailed=1)
    result.stdout.fnmatch_lines(["SKIPPED*not here", "XFAIL*known"])


def test_ranks_meet_without_a_name_server_and_without_each_other(pytester: pytest.Pytester) -> None:
    """Torch's TCPStore asks for the name of each address, and ends with rank 0."""
    pytest.importorskip("torch")
    result = run(
        pytester,
        """
        import pytest
        import torch.distributed as dist

        @pytest.mark.distributed(nproc=3)
        def test_slow():
            store = dist.distributed_c10d._get_default_store()
            for _ in range(500 * dist.get_rank()):
                store.add("count", 1)
            while isinstance(store, dist.PrefixStore):
                store = store.underlying_store
            assert type(store) is dist.FileStore
        """,
    )
    result.assert_outcomes(passed=1)
    assert "Store" not in result.stdout.str() + result.stderr.str()


@pytest.mark.torch
def test_a_rank_that_is_through_at_once_spoils_no_other(pytester: pytest.Pytester) -> None:
    """Those that still connect to it would fail, in one of twenty such tests. Here no test imports torch."""
    pytester.makeconftest(
        """
        import os, pytest, sys
        at_fork = set()
        os.register_at_fork(after_in_child=lambda: at_fork.update(sys.modules))

        @pytest.fixture
        def imported_before():
            return at_fork
        """
    )
    result = run(
        pytester,
        """
        import pytest

        @pytest.mark.distributed(nproc=4)
        @pytest.mark.parametrize("number", range(60))
        def test_nothing(number, imported_before):
            assert "torch" in imported_before
        """,
    )
    result.assert_outcomes(passed=60)


def test_failures_are_shown_with_their_ranks(pytester: pytest.Pytester) -> None:
    # A rank that a busy machine holds up for a second is none that does not end.
    pytester.makeconftest("from elasticrun.testing import running\nrunning.GRACE = 30.0")
    result = run(
        pytester,
        """
        import os, pytest
        RANK = int(os.environ.get("RANK", -1))
        on_ranks = pytest.mark.distributed(nproc=2, backend=None)

        @on_ranks
        def test_one():
            print("this is", os.environ["RANK"])
            left = [1, int(os.environ["RANK"])]
            assert left == [1, 0]

        @on_ranks
        def test_all():
            raise LookupError("rank " + os.environ["RANK"])

        @pytest.fixture
        def broken():
            raise OSError("no fixture")

        @on_ranks
        def test_fixture(broken):
            pass
        """,
    )
    result.assert_outcomes(failed=2, errors=1)
    out = result.stdout.str()
    one, _, rest = out.partition("___ test_all ___")
    assert "E   [rank 1] assert [1, 1] == [1, 0]" in one, "assertions are rewritten"
    assert "E   [rank 1]   At index 1 diff: 1 != 0" in one, "as far to the right as pytest has it"
    assert "[rank 0] assert" not in one, "that one has passed"
    assert re.search(r"\[rank 1\] Captured stdout call -+\nthis is 1\n", one)
    assert "[rank 0] LookupError: rank 0" in rest
    assert "[rank 1] LookupError: rank 1" in rest
    assert "FAILED test_it.py::test_one - [rank 1] assert [1, 1] == [1, 0]" in out
    assert out.count("E   [ranks 0-1] OSError: no fixture") == 1, "what reads alike stands there once"


@pytest.mark.parametrize(
    ("ranks", "label"), [([1], "[rank 1]"), ([0, 1, 2], "[ranks 0-2]"), ([0, 2, 3, 7], "[ranks 0, 2-3, 7]")]
)
def test_ranks_are_named_in_short(ranks: list[int], label: str) -> None:
    assert merging._label(ranks) == label


def test_who_does_not_end_is_stopped_and_its_place_is_shown(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that wait for a failed rank, those that never end, and those that are killed."""
    monkeypatch.setenv("CI", "true")  # pytest's summary has the whole of a message there
    result = run(
        pytester,
        """
        import os, signal, threading
        import pytest

        def wait_for_ever():
            threading.Event().wait()

        @pytest.mark.distributed(nproc=2, backend=None)
        def test_left_behind():
            assert os.environ["RANK"] == "0"
            wait_for_ever()

        @pytest.mark.distributed(nproc=2, backend=None, timeout=5)
        def test_hangs():
            if os.environ["RANK"] == "1":
                wait_for_ever()

        @pytest.mark.distributed(nproc=2, backend=None)
        def test_is_killed():
            if os.environ["RANK"] == "1":
                os.kill(os.getpid(), signal.SIGKILL)
            wait_for_ever()
        """,
    )
    result.assert_outcomes(failed=3)
    out = result.stdout.str()
    assert "[rank 1] AssertionError: assert '1' == '0'" in out
    assert "rank 0 still ran after another rank had failed, and stood here:" in out
    assert "rank 1 still ran after 5 s, and stood here:" in out
    assert out.count("in wait_for_ever") == 2
    assert "_pytest" not in out, "no frames but the test's"
    assert re.search(r"rank 1 .* was killed by SIGKILL", out)


def test_fixtures_of_plain_tests_end_with_the_last_test_that_shares_them(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
        import pytest

        @pytest.fixture(scope="class")
        def broken():
            yield
            raise OSError("no teardown")

        class TestShared:
            def test_plain(self, broken): pass

            @pytest.mark.distributed(nproc=1, backend=None)
            def test_on_a_rank(self): pass

        def test_next(): pass
        """,
    )
    result.assert_outcomes(passed=3, errors=1)
    result.stdout.fnmatch_lines(["ERROR *TestShared::test_on_a_rank - OSError: no teardown"])


@pytest.mark.parametrize("way", [("--device", "tests", "tests"), ("--device", "tests")])
def test_ranks_are_collected_as_the_session_is(pytester: pytest.Pytester, way: tuple[str, ...]) -> None:
    """With its root, its configuration, its conftests and its options, whatever they look like."""
    pytester.makeconftest(
        """
        import os, pytest
        def pytest_addoption(parser): parser.addoption("--device")
        @pytest.fixture(scope="session", autouse=True)
        def elsewhere(tmp_path_factory):
            os.chdir(tmp_path_factory.getbasetemp())
        """
    )
    test = pytester.mkdir("tests") / "test_it.py"
    test.write_text(
        textwrap.dedent(
            """
            import pytest
            def test_plain(): pass
            @pytest.mark.distributed(nproc=1, backend=None)
            def test_on_a_rank(pytestconfig):
                assert pytestconfig.getoption("--device") == "tests"
            """
        )
    )
    pytester.makeini("[pytest]\nmarkers = outer\n")
    (test.parent / "pytest.ini").write_text("[pytest]\nmarkers = inner\n")
    more = ("-c", "tox.ini", "-p", "no:xdist", "-W", "error")
    result = pytester.runpytest_subprocess(*QUIET, *more, *way)
    result.assert_outcomes(passed=2)


@pytest.mark.parametrize("way", [".", "test_it.py", "test_it.py::TestIt::test_on_a_rank"])
def test_ranks_have_tests_that_are_not_below_the_root(pytester: pytest.Pytester, way: str) -> None:
    """pytest's own ids depend there on what the command line names."""
    (pytester.mkdir("elsewhere") / "pytest.ini").write_text("[pytest]\n")
    result = run(
        pytester,
        """
        import pytest
        class TestIt:
            @pytest.mark.distributed(nproc=1, backend=None)
            def test_on_a_rank(self): pass
        """,
        "-c",
        "elsewhere/pytest.ini",
        way,
    )
    result.assert_outcomes(passed=1)


def test_the_limit_of_another_plugin_is_a_failure(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(
        """
        import os, signal, pytest

        def stop(*_):
            pytest.fail("enough of that")

        if "CALLER" not in os.environ:
            os.environ["CALLER"] = str(os.getpid())
            signal.signal(signal.SIGUSR1, stop)
        """
    )
    result = run(
        pytester,
        """
        import os, signal, threading, pytest

        @pytest.mark.distributed(nproc=1, backend=None)
        def test_hangs():
            os.kill(int(os.environ["CALLER"]), signal.SIGUSR1)
            threading.Event().wait()

        def test_next(): pass
        """,
    )
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["rank 0 still ran (enough of that), and stood here:"])


@pytest.mark.parametrize("way", [(), ("-n2",)])
def test_what_ranks_execute_is_covered(pytester: pytest.Pytester, way: tuple[str, ...]) -> None:
    for module in ("pytest_cov", *(["xdist"] if way else [])):
        pytest.importorskip(module)
    pytester.makepyfile(
        counted="""
        def on_rank(number):
            if number == "0":
                return "first"
            return "second"

        def here():
            return "here"
        """
    )
    result = run(
        pytester,
        """
        import os, counted, pytest

        @pytest.mark.distributed(nproc=2, backend=None)
        def test_on_ranks(): counted.on_rank(os.environ["RANK"])

        def test_here(): counted.here()
        """,
        "--cov=counted",
        *way,
    )
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(["counted.py * 0 *100%*"])


def test_ranks_fail_as_ever_where_nobody_can_look_into_them(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
        import pytest
        @pytest.mark.distributed(nproc=1, backend=None)
        def test_on_a_rank(): assert 1 == 2
        """,
        *("--trace", "--pdb", "--setup-show"),
    )
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["E   [[]rank 0[]] assert 1 == 2"])


def test_a_plan_of_the_setup_runs_no_rank(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
        import pytest
        @pytest.fixture
        def resource(): raise OSError
        @pytest.mark.distributed(nproc=1, backend=None)
        def test_on_a_rank(resource): raise OSError
        """,
        "--setup-plan",
    )
    assert result.ret == 0
    result.stdout.fnmatch_lines(["*SETUP*resource"])


def test_wrong_marks_and_missing_tests_are_told_in_one_sentence(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
        import os, pytest

        @pytest.mark.distributed(3)
        def test_unnamed(): pass

        @pytest.mark.distributed(nproc=0)
        def test_nobody(): pass

        @pytest.mark.distributed(nprocs=2)
        def test_mistyped(): pass

        @pytest.mark.distributed(nproc=1, timeout=None)
        def test_endless(): pass

        @pytest.mark.distributed(nproc=1, max_restarts="many")
        def test_restless(): pass
        """,
    )
    result.assert_outcomes(failed=5)
    result.stdout.fnmatch_lines(
        [
            "distributed(3,) was given: name the arguments, as in distributed(nproc=2)",
            "nproc=0 was given: give a whole number of 1 or more",
            "launch has no option nprocs*",
            "timeout=None was given: give seconds, as a number above 0",
            "*max-restarts*many*",
        ]
    )


#: A conftest that tells the session's own process from all others.
OWN = """
import os
os.environ.setdefault("SESSION", str(os.getpid()))
"""


def test_what_cannot_be_collected_again_says_why(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(OWN)
    result = run(
        pytester,
        """
        import os, pytest
        assert os.environ["SESSION"] == str(os.getpid()), "not twice"

        @pytest.mark.distributed(nproc=1, backend=None)
        @pytest.mark.parametrize("number", [1, 2])
        def test_on_a_rank(number): pass
        """,
    )
    result.assert_outcomes(failed=2)
    result.stdout.fnmatch_lines(["the process that collects the tests for the ranks has ended; it said:"])
    assert result.stdout.str().count("E   AssertionError: not twice") == 2


def test_a_test_with_another_name_on_the_ranks_is_told_of(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
        import os, pytest

        @pytest.mark.distributed(nproc=1, backend=None)
        @pytest.mark.parametrize("pid", [os.getpid()])
        def test_on_a_rank(pid): pass
        """,
    )
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        ["*has not found *test_it.py, *test_on_a_rank*: give its parameters the same names*"]
    )


def test_a_doctest_and_a_test_of_one_name_are_two(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
        import pytest
        pytestmark = pytest.mark.distributed(nproc=1, backend=None)
        def test_it():
            '''
            >>> 1 + 1
            3
            '''
        """,
        "--doctest-modules",
    )
    result.assert_outcomes(passed=1, failed=1)


@pytest.mark.parametrize("asked", ["is_available()", "zeros()"])
def test_a_rank_that_cannot_use_cuda_says_why(pytester: pytest.Pytester, asked: str) -> None:
    """To ask whether there is a GPU while tests are collected does no harm, and to use it does."""
    pytester.makepyfile(
        torch="""
        import os, types
        def set_num_threads(_): pass
        pid, has_begun = os.getpid(), []
        def zeros(): has_begun.append(1)
        def is_available(): os.environ.get("PYTORCH_NVML_BASED_CUDA_CHECK") == "1" or has_begun.append(1)
        cuda = types.SimpleNamespace(_is_in_bad_fork=lambda: bool(has_begun) and os.getpid() != pid)
        """
    )
    result = run(
        pytester,
        f"""
        import pytest, torch
        torch.{asked}
        @pytest.mark.distributed(nproc=2, backend=None)
        def test_on_a_gpu():
            assert not torch.cuda._is_in_bad_fork(), "Cannot re-initialize CUDA in forked subprocess"
        """,
    )
    if asked != "zeros()":
        result.assert_outcomes(passed=1)
        return
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*rank 0* elasticrun*", "CUDA is in use already in the process that*"])


def test_a_session_without_distributed_tests_starts_nothing(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
        import sys
        def test_plain():
            assert not [it for it in sys.modules if it.startswith("elasticrun.launching")]
        """,
    )
    result.assert_outcomes(passed=1)


def test_ranks_are_prepared_while_the_session_still_collects(pytester: pytest.Pytester) -> None:
    """And a file that only seems to have distributed tests may fail there: no rank needs it."""
    pytester.makeconftest(OWN + "os.path.exists('bell') or os.mkfifo('bell')\n")
    pytester.makepyfile(
        test_a="""
        import os, pytest
        if os.environ["SESSION"] != str(os.getpid()):
            with open("bell", "w") as bell:
                bell.write("!")
            raise OSError("not twice")
        def test_plain(): "No pytest.mark.distributed."
        """,
        test_b="""
        import os, select
        if os.environ["SESSION"] == str(os.getpid()):
            bell = os.open("bell", os.O_RDONLY | os.O_NONBLOCK)
            assert select.select([bell], [], [], 60)[0], "nobody collects test_a for ranks"
        def test_plain(): pass
        """,
        test_c="""
        import pytest
        @pytest.mark.distributed(nproc=1, backend=None)
        def test_on_a_rank(): pass
        """,
    )
    result = pytester.runpytest_subprocess(*QUIET)
    result.assert_outcomes(passed=3)


@pytest.mark.parametrize(
    ("way", "processes"),
    [
        (("-m", "not distributed"), 1),
        (("--collect-only",), 1),
        (("--setup-plan",), 1),
        (("--markers",), 0),
        (("-n2", "-k", "plain"), 2),
        (("-k", "plain"), None),  # that is known only once all is collected: then it is ended
    ],
)
def test_ranks_that_no_test_needs_are_not_prepared(
    pytester: pytest.Pytester, way: tuple[str, ...], processes: int | None
) -> None:
    if "-n2" in way:
        pytest.importorskip("xdist")
    result = run(
        pytester,
        """
        import os, pathlib, pytest
        pathlib.Path(f"{os.getpid()}.pid").touch()
        def test_plain(): pass
        @pytest.mark.distributed(nproc=1, backend=None)
        def test_on_a_rank(): pass
        """,
        *way,
    )
    assert result.ret == 0
    pids = [int(path.stem) for path in pytester.path.glob("*.pid")]
    assert processes in (None, len(pids))
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


@pytest.mark.parametrize("way", ["load", "loadgroup"])
def test_sessions_of_several_processes_have_ranks_each(pytester: pytest.Pytester, way: str) -> None:
    """Pytest-xdist appends the name of a group to the ids of its tests."""
    pytest.importorskip("xdist")
    result = run(
        pytester,
        """
        import os, pytest
        @pytest.mark.xdist_group("ranks")
        @pytest.mark.distributed(nproc=2, backend=None)
        @pytest.mark.parametrize("number", range(4))
        def test_rank(number):
            assert os.environ["WORLD_SIZE"] == "2"
        """,
        "-n2",
        f"--dist={way}",
    )
    result.assert_outcomes(passed=4)


@pytest.mark.torch
def test_ranks_are_in_a_process_group(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
        import pytest, torch
        import torch.distributed as dist

        @pytest.mark.distributed(nproc=2)
        @pytest.mark.parametrize("size", [1, 3])
        def test_sum(size):
            total = torch.ones(size)
            dist.all_reduce(total)
            assert total.tolist() == [2.0] * size

        @pytest.mark.distributed(nproc=2, backend="nonsense")
        def test_no_backend(): pass

        @pytest.mark.distributed(nproc=2)
        def test_cause_comes_first():
            assert dist.get_rank() != 1, "the cause"
            dist.barrier()
        """,
    )
    result.assert_outcomes(passed=2, failed=1, errors=1)
    out = result.stdout.str()
    assert re.search(r"ERROR test_it.py::test_no_backend - \[rank.*\] no process group with backend", out)
    assert "FAILED test_it.py::test_cause_comes_first - [rank 1] AssertionError: the cause" in out


def test_faults_come_at_steps_and_the_test_goes_on(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
        import os
        import elasticrun, pytest
        from elasticrun.testing import Kill, LoseNode

        LOST = {"nodes": 2, "min_nodes": 1, "faults": [LoseNode(1, at_step=1)]}

        @pytest.mark.distributed(nproc=1, backend=None, **LOST)
        def test_outlives_a_node():
            for step in range(3):
                elasticrun.report_step(step)
            assert os.environ["WORLD_SIZE"] == "1"

        @pytest.mark.distributed(nproc=2, backend=None, max_restarts=1, faults=[Kill(rank=1, at_step=2)])
        def test_survives(tmp_path):
            for step in range(4):
                elasticrun.report_step(step)
            assert os.environ["TORCHELASTIC_RESTART_COUNT"] == "1"

        @pytest.mark.distributed(nproc=2, backend=None, max_restarts=1)
        def test_fails_twice():
            assert os.environ["RANK"] == "0", os.environ["ELASTICRUN_ROUND"]
        """,
    )
    result.assert_outcomes(passed=2, failed=1)
    assert "[rank 1] AssertionError: 1" in result.stdout.str(), "of the last round"


def test_who_is_stopped_in_another_world_is_of_that_world(pytester: pytest.Pytester) -> None:
    """A rank that was lost is none of it, and one that has joined is."""
    result = run(
        pytester,
        """
        import os, threading
        import elasticrun, pytest
        from elasticrun.testing import Join, LoseNode

        def wait_for_ever():
            threading.Event().wait()

        def train():
            for step in range(3):
                elasticrun.report_step(step)
            assert os.environ["RANK"] != "0"
            wait_for_ever()

        LOST = {"nodes": 2, "min_nodes": 1, "faults": [LoseNode(1, at_step=1)]}

        @pytest.mark.distributed(nproc=2, backend=None, **LOST)
        def test_a_node_is_lost():
            train()

        @pytest.mark.distributed(nproc=1, backend=None, faults=[Join(after_step=1)])
        def test_a_node_has_joined():
            train()
        """,
    )
    result.assert_outcomes(failed=2)
    out = result.stdout.str()
    assert out.count("\nrank 1 still ran after another rank had failed, and stood here:") == 2
    assert out.count("in wait_for_ever") == 2
