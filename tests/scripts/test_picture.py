"""The picture of a recovery is what its script makes of the log of one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

from scripts import picture

ROOT = Path(__file__).parents[2]
LOG = Path(__file__).with_name("recovery.jsonl")
PICTURE = ROOT / "elasticrun/manual/recovery.svg"


def test_the_picture_of_the_readme_is_drawn_from_the_recorded_log() -> None:
    command = [sys.executable, "scripts/picture.py", "draw", str(LOG)]
    drawn = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert drawn == PICTURE.read_text()
    assert ElementTree.fromstring(drawn).tag.endswith("svg")


def test_a_recovery_is_told_from_the_kill_to_the_first_step() -> None:
    found = picture.marks(LOG.read_text().splitlines())
    (killed,) = (mark for mark in found if mark.what == "killed")
    assert killed.at == 0
    first = min(mark.at for mark in found if mark.what == "step" and mark.round > 0)
    words = picture.draw(found)
    assert f"{first:.0f} ms later both train again" in words
    told = [words.index(sentence) for _, sentence in picture.PHASES.values()]
    assert told == sorted(told)


def test_lines_that_are_no_events_are_passed_over() -> None:
    lines = LOG.read_text().splitlines()
    assert picture.marks(["elastic-run: something", *lines]) == picture.marks(lines)


def test_wrong_use() -> None:
    assert picture.main(["paint"]) == 2
