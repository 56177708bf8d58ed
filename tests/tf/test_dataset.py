"""The data of a chief: its position is saved with the model, and both go back together.

A variable on a parameter server counts how often each sample was trained on, so no position is believed.
"""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from elasticrun.cli.ctl import group
from tests.tf.test_chief import Chief, Cluster

LENGTH = 21  # samples; a batch has 4, the last one of an epoch has 1

pytestmark = pytest.mark.tensorflow


def audited(run: Path, *options: str) -> tuple[int, Any]:
    """The exit status of ``elastic-ctl audit``, and what it prints."""
    result = CliRunner().invoke(group, ["audit", str(run), *options])
    return result.exit_code, result.stdout


def test_model_and_samples_go_back_together(tmp_path: Path) -> None:
    run = tmp_path / "run"
    order: dict[str, Any] = {"directory": str(tmp_path / "checkpoints"), "records": str(run), "last": 30}
    with ExitStack() as cleanup:
        cluster = Cluster(cleanup, tmp_path / "log")
        order["config"] = cluster.config(2)
        for role, index in (("worker", 0), ("ps", 0), ("ps", 1)):
            cluster.serve(2, role, index)
        chief = cleanup.enter_context(Chief(cluster))

        first, end = chief.live("learn", **order, die=8)
        assert (first["resumed"], first["samples"], end["status"]) == (0, 0, 9)

        # Six steps were saved: an epoch of 21 samples and nothing of the next, though 8 steps were made, and
        # tf.data had prepared more.
        second, end = chief.live("learn", **order, die=13)
        assert (second["resumed"], second["samples"], end["status"]) == (6, LENGTH, 9)
        assert second["counts"] == [1] * LENGTH

        # The last of them trains to the end: 5 epochs, each sample in each of them once.
        third, done, end = chief.live("learn", **order)
        assert (third["resumed"], third["samples"]) == (12, 2 * LENGTH)
        assert (third["counts"], end["status"]) == ([2] * LENGTH, 0)
        assert (done["done"], done["samples"], done["epoch"]) == (30, 5 * LENGTH, 4)
        assert done["counts"] == [5] * LENGTH

        told = chief.live("learn", **{**order, "length": LENGTH + 1})
        assert told[-1]["status"] == 1, "another dataset"
        assert "the dataset has 22 samples, and had 21" in (tmp_path / "log").read_text()

    status, text = audited(run)
    assert (status, text.splitlines()[:2]) == (
        0,
        ["the model of step 30 of round 2, trained in rounds 0, 1, 2", "data: exact"],
    )
    assert [path.name for path in sorted((run / "data").iterdir())] == [
        f"round_{number}_rank_0.jsonl" for number in range(4)
    ]
    plant(run / "data" / "round_2_rank_0.jsonl")
    status, text = audited(run)
    assert status == 1
    assert "epoch 1: missing: 0; more than once: 4 (" in text


def plant(path: Path) -> None:
    """Have the last chief begin four samples earlier than the model that it restored."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for line in lines[1:]:
        line["data"]["data"]["resumed"] -= 4
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))


def test_what_cannot_be_is_said(tmp_path: Path) -> None:
    with ExitStack() as cleanup:
        chief = cleanup.enter_context(Chief(Cluster(cleanup, tmp_path / "log")))
        *told, end = chief.live("refuse_data")
    assert end["status"] == 0
    found = {each.pop("what"): each for each in told}
    old = found.pop("old")
    assert [len(batch) for batch in old["found"]] == [2, 2, 1]
    assert sorted(index for batch in old["found"] for index in batch) == list(range(5))
    assert "this iteration is over" in old["text"]
    said = {
        "empty": "length is a whole number from 1 on, got 0",
        "batch": "batch_size is a whole number from 1 on, got 0",
        "small": "the dataset has 3 samples: with drop_last that is no batch of 4",
        "half": "give both read and output_signature",
        "prefetch": "prefetch is a whole number from 0 on, got -1",
        "records": "records= has nothing to record",
        "name": "the names positions, step are taken",
        "other": "the checkpoint has positions in b, and the program has data named a",
        "none": "the saved position in the data is none",
    }
    for name, text in said.items():
        assert text in found.pop(name)["text"], name
    assert len(found) == 6
    assert {each["text"] for each in found.values()} == {
        "the positions in the checkpoint are damaged, or of another release of elasticrun"
    }
