"""The JSON file, the table, and parts that are joined."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from scripts.benchmarks.command import main
from scripts.benchmarks.figures import Sample
from scripts.benchmarks.launchers import BY_HAND, OURS, TORCHRUN
from scripts.benchmarks.report import (
    BEGIN,
    END,
    NOT_INSTALLED,
    TF_BEGIN,
    TF_END,
    MergeRefused,
    Report,
    markdown,
    merge,
    read_json,
    write_json,
    write_readme,
)

REPORT = Report(
    machine={
        "cpu": "Abacus",
        "cores": "2",
        "memory": "25 GB",
        "gpu": "none",
        "kernel": "6.1",
        "python": "3.11.7",
        "torch": "2.13.0",
    },
    commit="abc",
    launchers={OURS: "as it is", TORCHRUN: "as it is", "ft_launcher": "not installed"},
    samples=(
        Sample("launch", OURS, 0, {"launch": 0.25}),
        Sample("launch", TORCHRUN, 0, {"launch": 2.5}),
        Sample("launch", OURS, 1, {"launch": 0.75}),
        Sample("launch", TORCHRUN, 1, {}, "it hung", 1.5, "node0| a line"),
    ),
    commands=("scripts/bench launch --runs 2",),
    begun="2026-01-02 03:04 UTC",
    loads=((0.5, 1.5),),
)


def test_a_report_survives_the_file(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    write_json(REPORT, path)
    assert read_json(path) == REPORT


def test_another_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.json"
    path.write_text("{}")
    with pytest.raises(ValueError, match="no measurement"):
        read_json(path)


def test_the_table_says_everything() -> None:
    text = markdown(REPORT)
    assert "Abacus, 2 cores, 25 GB, no GPU" in text
    assert "scripts/bench launch --runs 2" in text
    assert "load average 0.5 to 1.5" in text
    assert "- ft_launcher: not installed." in text
    assert "- launch, torchrun: 1 x it hung." in text
    (row,) = (line for line in text.splitlines() if line.startswith("| launch to first line"))
    assert [cell.strip() for cell in row.strip("|").split("|")] == [
        "launch to first line, script without torch (s)",
        "0.500 (0.250 to 0.750), 2/2",
        "2.50, 1/2",
        "0.1 x torchrun (1 of 2 runs)",
        "<= 0.15 x torchrun",
        "met",
    ]


def test_the_stages_are_a_table_of_their_own() -> None:
    stages = Sample("stages", OURS, 0, {"stage-detect": 0.01, "stage-step": 0.02})
    text = markdown(replace(REPORT, samples=(stages,)))
    assert "| death seen, and told to the master | 0.010, 1/1 |" in text
    assert "| first all-reduce | 0.020, 1/1 |" in text
    assert "the GPU's context" not in text
    assert "No GPU was there" in text
    on_gpu = replace(stages, figures={**stages.figures, "stage-device": 0.3})
    text = markdown(replace(REPORT, samples=(on_gpu,)))
    assert "| the GPU's context made | 0.300, 1/1 |" in text
    assert "No GPU was there" not in text


def test_what_never_succeeds_is_said_so() -> None:
    never = tuple(replace(it, figures={}, failure="it hung") for it in REPORT.samples)
    assert "| never, 0/2 | never, 0/2 |" in markdown(replace(REPORT, samples=never))


def test_parts_of_different_cases_are_joined() -> None:
    kill = replace(
        REPORT,
        samples=(Sample("kill", OURS, 0, {"kill": 0.4}),),
        commands=("scripts/bench kill",),
        loads=((3.0, 4.0),),
    )
    joined = merge([REPORT, kill])
    assert joined.samples == REPORT.samples + kill.samples
    assert joined.commands == (*REPORT.commands, *kill.commands)
    assert joined.loads == ((0.5, 1.5), (3.0, 4.0))


def test_rounds_of_the_same_case_are_numbered_on() -> None:
    joined = merge([REPORT, REPORT])
    assert [it.number for it in joined.samples if it.launcher == OURS] == [0, 1, 2, 3]
    assert joined.commands == REPORT.commands


@pytest.mark.parametrize(
    ("other", "why"),
    [
        (replace(REPORT, commit="def"), "commits: abc and def"),
        (replace(REPORT, machine={**REPORT.machine, "cores": "4"}), "cores is 2 in one, 4 in another"),
    ],
)
def test_parts_of_different_origin_are_refused(
    other: Report, why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(MergeRefused, match=why):
        merge([REPORT, other])
    files = tmp_path / "a.json", tmp_path / "b.json"
    for report, path in zip((REPORT, other), files, strict=True):
        write_json(report, path)
    with pytest.raises(SystemExit) as ended:
        main(["merge", *map(str, files)])
    assert ended.value.code == 1
    assert why in capsys.readouterr().err


def test_the_page_gets_the_table_between_its_markers(tmp_path: Path) -> None:
    page, part, out = tmp_path / "page.md", tmp_path / "a.json", tmp_path / "all.json"
    page.write_text(f"before\n{BEGIN}\nan old table\n{END}\nafter\n")
    write_json(REPORT, part)
    main(["merge", str(part), "--json", str(out), "--readme", str(page)])
    assert page.read_text() == f"before\n{BEGIN}\n{markdown(REPORT)}{END}\nafter\n"
    assert read_json(out) == REPORT


def test_tensorflow_has_a_table_and_a_place_of_its_own(tmp_path: Path) -> None:
    served = replace(
        REPORT,
        machine={**REPORT.machine, "tensorflow": "2.21.0"},
        samples=(
            Sample("tf-served", OURS, 0, {"tf-ps": 5.0}),
            Sample("tf-served", BY_HAND, 0, {"tf-ps": 20.0}),
        ),
        launchers={OURS: "as it is", BY_HAND: "a loop", TORCHRUN: NOT_INSTALLED},
    )
    text = markdown(served)
    assert "Python 3.11.7, tensorflow 2.21.0; commit" in text
    assert TORCHRUN not in text  # which starts no such jobs, installed or not
    assert "| ps SIGKILL to the chief's first step (s) | 5.00, 1/1 | 20.0, 1/1 | 0.25 x by-hand |" in text
    assert "torch 2.13.0, tensorflow 2.21.0" in markdown(
        replace(served, samples=(*served.samples, *REPORT.samples))
    )
    page = tmp_path / "page.md"
    page.write_text(f"{BEGIN}\n{END}\n{TF_BEGIN}\n{TF_END}\n")
    write_readme(served, page)
    assert page.read_text() == f"{BEGIN}\n{END}\n{TF_BEGIN}\n{text}{TF_END}\n"


def test_a_page_without_markers_is_left_alone(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("nothing\n")
    with pytest.raises(ValueError, match="to put the table between"):
        write_readme(REPORT, page)
    assert page.read_text() == "nothing\n"
