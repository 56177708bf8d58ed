"""``elastic-ctl operator``, as far as it needs no cluster."""

from __future__ import annotations

import re
import socket
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result

from elasticrun.cli import web
from elasticrun.cli.ctl import group
from elasticrun.cli.ctl_operator import capacity_of
from elasticrun.errors import ExitCode

MANUAL = Path(web.__file__).parent.parent / "manual/operator.md"


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


def test_metrics_without_their_package_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("kubernetes")
    monkeypatch.setattr(web, "find_spec", lambda it: None if it == "prometheus_client" else it)
    done = invoke("--metrics", ":0")
    assert done.exit_code == 2
    assert "--metrics needs the package prometheus_client" in done.stderr
    assert "pip install 'elasticrun[metrics]'" in done.stderr


def test_a_port_of_metrics_that_is_taken_is_told() -> None:
    pytest.importorskip("kubernetes")
    pytest.importorskip("prometheus_client")
    with socket.create_server(("127.0.0.1", 0)) as other:
        at = f"127.0.0.1:{other.getsockname()[1]}"
        done = invoke("--metrics", at)
    assert done.exit_code == ExitCode.ENDPOINT_TAKEN
    assert f"--metrics {at}: another program has this port" in done.stderr


def test_an_address_of_metrics_that_is_none_is_told() -> None:
    done = invoke("--metrics", "here:port")
    assert done.exit_code == 2
    assert "give [HOST]:PORT, such as :9400" in done.stderr


def test_the_deployment_of_the_manual_serves_what_its_probes_ask_for() -> None:
    blocks = re.findall(r"^```yaml\n(.*?)^```", MANUAL.read_text(), re.M | re.S)
    (found,) = (it for block in blocks for it in yaml.safe_load_all(block) if it["kind"] == "Deployment")
    (container,) = found["spec"]["template"]["spec"]["containers"]
    program, verb, *words = container["command"]
    context = group.commands[verb].make_context(verb, words)
    assert (program, context.params["namespaces"]) == ("elastic-ctl", (found["metadata"]["namespace"],))
    (port,) = container["ports"]
    assert context.params["metrics"] == f"0.0.0.0:{port['containerPort']}"
    probes = [container[f"{kind}Probe"]["httpGet"] for kind in ("liveness", "readiness")]
    assert probes == [{"path": path, "port": port["name"]} for path in ("/healthz", "/readyz")]


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
