"""``elastic-ctl operator``, as far as it needs no cluster."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result

from elasticrun.cli import web
from elasticrun.cli.ctl import group
from elasticrun.cli.ctl_operator import capacity_of


def invoke(*words: str | Path, **env: str) -> Result:
    return CliRunner().invoke(group, ["operator", *map(str, words)], env={"KUBECONFIG": "", **env})


def test_it_prints_what_is_to_be_installed() -> None:
    done = invoke("--crds", "--rbac", "--namespace", "a", "--namespace", "b")
    assert done.exit_code == 0
    kinds = [it["kind"] for it in yaml.safe_load_all(done.stdout)]
    each = ["Role", "RoleBinding"]
    assert kinds == ["CustomResourceDefinition"] * 3 + ["ServiceAccount"] + each + each
    documents = [it["kind"] for it in yaml.safe_load_all(invoke("--rbac").stdout)]
    assert documents == ["ServiceAccount", "ClusterRole", "ClusterRoleBinding"]


@pytest.mark.parametrize("verb", sorted(group.commands))
def test_examples_in_a_help_keep_their_lines(verb: str) -> None:
    text = CliRunner().invoke(group, [verb, "--help"]).stdout
    assert "\\b" not in text
    if verb == "operator":
        assert "\n  elastic-ctl operator --crds | kubectl apply -f -\n" in text


def test_a_kubeconfig_that_is_not_there_is_told(tmp_path: Path) -> None:
    pytest.importorskip("kubernetes")
    done = invoke("--kubeconfig", tmp_path / "none")
    assert done.exit_code == 2
    assert "there is no file" in done.stderr


def test_a_package_that_is_not_installed_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web, "find_spec", lambda _: None)
    done = invoke()
    assert done.exit_code == 2
    assert "pip install 'elasticrun[kubernetes]'" in done.stderr


def test_what_is_shared_is_given_by_kind() -> None:
    assert capacity_of(()) is None
    found = capacity_of(("nvidia.com/gpu=16", "cpu=1.5"))
    assert found == {"nvidia.com/gpu": 16, "cpu": 1500}
    assert list(found) == ["nvidia.com/gpu", "cpu"]


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["memory=64Gi"], "--capacity memory=64Gi is of no kind that can be shared: give cpu=CORES, or a"),
        (["16"], "--capacity 16 is of no kind"),
        (["cpu"], "--capacity cpu: '' is no amount of CPU; give a number such as 16"),
        (["cpu=4", "cpu=8"], "--capacity gives cpu twice: give the sum once"),
    ],
)
def test_what_cannot_be_shared_is_told(words: list[str], text: str) -> None:
    done = invoke(*(part for word in words for part in ("--capacity", word)))
    assert done.exit_code == 2
    assert text in done.stderr
