"""What the manifests say, and what the shell in some of them does."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from elasticrun.errors import ExitCode
from elasticrun.platforms.allocation import FIRST_PORT, PORTS
from elasticrun.platforms.manifests.exits import AWAY, GIVE_UP, RETRYING, STAYING, WAIT
from elasticrun.platforms.manifests.formats import FORMATS, SBATCH, render
from elasticrun.platforms.manifests.pods import HEALTH_PORT, escaped
from elasticrun.platforms.manifests.text import as_yaml
from elasticrun.platforms.manifests.workload import Workload
from tests.support.processes import DEADLINE

ELASTIC = Workload(
    "digits", "r/x:1", nodes=(2, 4), command=("train.py",), token_secret="digits-token", queue="q"
)
KUBERNETES = [form for form in FORMATS if form is not SBATCH]


def built(name: str, workload: Workload = ELASTIC) -> list[dict[str, Any]]:
    (form,) = (form for form in FORMATS if form.name == name)
    return list(yaml.safe_load_all(render(form, workload)))


def pods(node: Any) -> list[dict[str, Any]]:
    """The specs of all pods in a manifest."""
    if isinstance(node, dict):
        own = [node] if isinstance(node.get("containers"), list) else []
        return own + [found for part in node.values() for found in pods(part)]
    return [found for part in node for found in pods(part)] if isinstance(node, list) else []


@pytest.mark.parametrize("form", KUBERNETES, ids=lambda form: form.name)
def test_every_pod_has_time_to_stop_and_the_token_by_reference(form: Any) -> None:
    found = pods(built(form.name, replace(ELASTIC, grace=77, token_file="/home/me/token")))
    assert found
    for pod in found:
        assert pod["terminationGracePeriodSeconds"] == 77
        assert {"name": "token", "secret": {"secretName": "digits-token"}} in pod["volumes"]
        (container,) = pod["containers"]
        mounted = {it["name"]: it["mountPath"] for it in container["volumeMounts"]}
        assert mounted["token"] == "/var/run/secrets/elasticrun"
        assert not any("/home/me/token" in word for word in container.get("command", ()))


@pytest.mark.parametrize("form", KUBERNETES, ids=lambda form: form.name)
def test_probes_ask_the_agent_only_and_none_tells_of_readiness(form: Any) -> None:
    for pod in pods(built(form.name)):
        (container,) = pod["containers"]
        assert "readinessProbe" not in container
        if form.name in ("trainjob", "statefulset"):  # no place for them; nothing answers after the end
            continue
        alive = container["livenessProbe"]
        assert alive["httpGet"] == {"path": "/healthz", "port": HEALTH_PORT}
        assert alive["periodSeconds"] * alive["failureThreshold"] >= 300
        assert {"name": "TORCHELASTIC_HEALTH_CHECK_PORT", "value": str(HEALTH_PORT)} in container["env"]
        # An operator's Service names ready pods only: a startup probe would hide a pod from itself.
        assert ("startupProbe" in container) == (form.name not in ("pytorchjob", "tfjob"))


def test_services_name_pods_that_are_not_ready() -> None:
    for name in ("job", "kueue", "statefulset"):
        service = built(name)[0]
        assert service["spec"]["publishNotReadyAddresses"] is True
        assert service["spec"]["clusterIP"] == "None"
    assert built("jobset")[-1]["spec"]["network"]["publishNotReadyAddresses"] is True
    assert "--publish-not-ready-addresses=true" in built("volcano")[-1]["spec"]["plugins"]["svc"]


def test_the_pods_of_a_gang_are_min_and_not_max() -> None:
    volcano = built("volcano")[-1]["spec"]
    assert (volcano["minAvailable"], volcano["tasks"][0]["minAvailable"]) == (2, 2)
    assert volcano["tasks"][0]["replicas"] == 4
    annotations = built("kueue")[-1]["metadata"]["annotations"]
    assert annotations["kueue.x-k8s.io/job-min-parallelism"] == "2"
    for name in ("pytorchjob", "tfjob"):
        assert built(name)[-1]["spec"]["runPolicy"]["schedulingPolicy"]["minAvailable"] == 2


@pytest.mark.parametrize(
    ("nodes", "least"), [((2, 4), 2), ((4, 4), 3), ((2, 2), 1), ((1, 3), 1), ((1, 1), None)]
)
def test_a_disruption_budget_leaves_min_and_never_blocks_a_drain(
    nodes: tuple[int, int], least: int | None
) -> None:
    found = [it for it in built("job", replace(ELASTIC, nodes=nodes)) if it["kind"] == "PodDisruptionBudget"]
    assert [it["spec"]["minAvailable"] for it in found] == ([least] if least else [])


def test_every_selector_finds_the_pods() -> None:
    for form in KUBERNETES:
        documents = built(form.name)
        (budget,) = (it for it in documents if it["kind"] == "PodDisruptionBudget")
        wanted = budget["spec"]["selector"]["matchLabels"]
        assert wanted.items() <= documents[-1]["metadata"]["labels"].items()
        templates = [
            it for it in walk(documents[-1]) if {"metadata", "spec"} <= it.keys() and pods(it["spec"])
        ]
        assert wanted.items() <= templates[-1]["metadata"]["labels"].items(), form.name


def walk(node: Any) -> list[dict[str, Any]]:
    if isinstance(node, dict):
        return [node, *(found for part in node.values() for found in walk(part))]
    return [found for part in node for found in walk(part)] if isinstance(node, list) else []


def test_three_hosts_serve_the_endpoint_if_min_allows_it() -> None:
    argv = built("job", replace(ELASTIC, nodes=(3, 4)))[-1]["spec"]["template"]["spec"]["containers"][0][
        "command"
    ]
    endpoint = argv[argv.index("--rdzv-endpoint") + 1]
    assert endpoint == "digits-0.digits:29400,digits-1.digits:29400,digits-2.digits:29400"
    argv = built("job")[-1]["spec"]["template"]["spec"]["containers"][0]["command"]
    assert argv[argv.index("--rdzv-endpoint") + 1] == "digits-0.digits:29400"


def test_fields_that_the_cluster_does_not_know_are_left_out() -> None:
    def fields(minor: int) -> set[str]:
        return set(built("job", replace(ELASTIC, minor=minor))[-1]["spec"])

    assert fields(31) - fields(30) == {"successPolicy"}
    assert fields(29) - fields(28) == {"backoffLimitPerIndex"}
    assert fields(28) - fields(29) == {"backoffLimit"}
    assert fields(26) - fields(25) == {"podFailurePolicy"}
    rules = built("job", replace(ELASTIC, minor=28))[-1]["spec"]["podFailurePolicy"]["rules"]
    assert "FailIndex" not in {rule["action"] for rule in rules}


def test_an_exit_code_has_one_meaning() -> None:
    rules = built("job")[-1]["spec"]["podFailurePolicy"]["rules"]
    listed = [code for rule in rules if "onExitCodes" in rule for code in rule["onExitCodes"]["values"]]
    assert len(listed) == len(set(listed))
    policies = built("volcano")[-1]["spec"]["tasks"][0]["policies"]
    codes = [it["exitCode"] for it in policies if "exitCode" in it]
    assert len(codes) == len(set(codes))
    assert 0 not in codes  # which Volcano refuses
    assert set(codes) >= set(ExitCode) - {ExitCode.OK, *AWAY}


def test_a_pytorchjob_says_in_its_elastic_policy_what_its_operator_makes_variables_of() -> None:
    spec = built("pytorchjob", replace(ELASTIC, workers="gpu", max_restarts=7))[-1]["spec"]
    policy = spec["elasticPolicy"]
    assert (policy["minReplicas"], policy["maxReplicas"], policy["maxRestarts"]) == (2, 4, 7)
    assert spec["nprocPerNode"] == "gpu"
    command = pods(spec)[0]["containers"][0]["command"]
    assert command[len(RETRYING) :] == ["elastic-run", "--", "train.py"]


def test_spot_nodes_are_tolerated_only_if_asked_for() -> None:
    assert "tolerations" not in pods(built("job"))[0]
    keys = {it["key"] for it in pods(built("job", replace(ELASTIC, is_spot=True)))[0]["tolerations"]}
    assert {"cloud.google.com/gke-spot", "kubernetes.azure.com/scalesetpriority"} <= keys


def test_a_restricted_pod_asks_for_nothing_and_can_write_to_tmp() -> None:
    (pod,) = pods(built("job", replace(ELASTIC, is_restricted=True)))
    assert pod["securityContext"] == {"seccompProfile": {"type": "RuntimeDefault"}, "runAsNonRoot": True}
    (container,) = pod["containers"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
    }
    assert {"name": "tmp", "mountPath": "/tmp"} in container["volumeMounts"]
    assert {"name": "tmp", "emptyDir": {}} in pod["volumes"]
    assert {"name": "HOME", "value": "/tmp"} in container["env"]


def test_a_volume_takes_the_place_of_what_a_restricted_pod_writes_to() -> None:
    (pod,) = pods(built("job", replace(ELASTIC, is_restricted=True, volumes=(("scratch", "/tmp"),))))
    mounts = [each["name"] for each in pod["containers"][0]["volumeMounts"] if each["mountPath"] == "/tmp"]
    assert mounts == ["volume-0"]
    assert "tmp" not in {each["name"] for each in pod["volumes"]}


def test_a_home_that_was_given_stays() -> None:
    (pod,) = pods(built("job", replace(ELASTIC, is_restricted=True, env=(("HOME", "/data"),))))
    assert [each["value"] for each in pod["containers"][0]["env"] if each["name"] == "HOME"] == ["/data"]


@pytest.mark.parametrize(
    ("word", "text"),
    [("a", "a"), ("$a", "$a"), ("$(a)", "$$(a)"), ("$$", "$$$$"), ("$$(a)", "$$$$(a)"), ("a$", "a$")],
)
def test_words_reach_the_container_as_they_are(word: str, text: str) -> None:
    assert escaped(word) == text
    assert expanded(text) == word


def expanded(text: str) -> str:
    """What Kubernetes makes of a word if no variable is known (its expansion.go)."""
    found, at = "", 0
    while at < len(text):
        if text[at] == "$" and at + 1 < len(text):
            assert text[at + 1] != "(", text
            found += "$" if text[at + 1] == "$" else text[at : at + 2]
            at += 2
        else:
            found += text[at]
            at += 1
    return found


@pytest.fixture
def stub(tmp_path: Path) -> Path:
    """A program in place of elastic-run: ends with its argument, or waits for SIGTERM."""
    path = tmp_path / "elastic-run"
    path.write_text(
        "#!/bin/sh\n[ $1 = wait ] || exit $1\ntrap 'exit 143' TERM\necho ready\nsleep 600 & s=$!\nwait $s\n"
    )
    path.chmod(0o755)
    return path


@pytest.mark.parametrize("code", [0, *ExitCode, 137, 143])
def test_what_may_be_started_again_ends_with_128_or_more(stub: Path, code: int) -> None:
    status = subprocess.run([*RETRYING, stub, str(int(code))], timeout=DEADLINE).returncode
    if code in (0, *AWAY):
        assert status == 0
    elif code in GIVE_UP:
        assert status == code
    else:
        assert status == (code if code >= 128 else 128 + code)


@pytest.mark.parametrize("code", [*WAIT, ExitCode.EXCLUDED, 137])
def test_a_pod_that_has_to_be_started_again_ends(stub: Path, code: int) -> None:
    assert subprocess.run([*STAYING, stub, str(int(code))], timeout=DEADLINE).returncode == code


@pytest.mark.parametrize(
    ("before", "argument"),
    [(STAYING, argument) for argument in (0, *GIVE_UP, *AWAY, "wait")] + [(RETRYING, "wait")],
    ids=lambda it: {STAYING: "staying", RETRYING: "retrying"}.get(it, str(it)),
)
def test_sigterm_ends_a_pod(stub: Path, before: tuple[str, ...], argument: int | str) -> None:
    """While elastic-run runs, and if the pod stays when the job is over."""
    text = argument if isinstance(argument, str) else str(int(argument))
    with subprocess.Popen(
        [*before, stub, text], stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline()
            process.send_signal(signal.SIGTERM)
            assert process.wait(DEADLINE) == 143
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def test_a_batch_script_is_one_for_bash(tmp_path: Path) -> None:
    workload = replace(
        ELASTIC,
        memory="1500M",
        cpu="500m",
        env=(("A", "it's"),),
        command=("train.py", "a b", "$HOME"),
        time_limit=90061,
    )
    path = tmp_path / "job.sh"
    path.write_text(text := render(SBATCH, workload))
    subprocess.run(["bash", "-n", path], check=True)
    for line in (
        "--nodes=2-4",
        "--mem=1431M",
        "--cpus-per-task=1",
        "--partition=q",
        "--time=1-01:02",
        "--no-kill",
    ):
        assert f"#SBATCH {line}\n" in text


def test_what_a_batch_script_starts(tmp_path: Path) -> None:
    """With programs in place of Slurm's, which print what they get."""
    (tmp_path / "scontrol").write_text("#!/bin/sh\nprintf 'n1\\nn2\\nn3\\n'\n")
    (tmp_path / "srun").write_text("#!/bin/sh\nprintf '%s\\n' \"$@\"\n")
    for program in ("scontrol", "srun"):
        (tmp_path / program).chmod(0o755)
    allocation = {"SLURM_JOB_NODELIST": "n[1-3]", "SLURM_JOB_NUM_NODES": "3", "SLURM_JOB_ID": "7"}
    workload = replace(ELASTIC, nodes=(3, 4), cpu="1500m", command=("train.py", "a b", "$HOME"))
    words = subprocess.run(
        ["bash", "-c", render(SBATCH, workload)],
        env={"PATH": f"{tmp_path}:{os.environ['PATH']}", **allocation},
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    assert "--cpus-per-task=2" in words[: words.index("elastic-run")], "srun does not take it from the job"
    words = words[words.index("elastic-run") :]
    assert words[:3] == ["elastic-run", "--nnodes", "3:3"]
    assert words[words.index("--rdzv-id") + 1] == "digits-7"
    assert words[words.index("--rdzv-endpoint") + 1] == "n1:20487,n2:20487,n3:20487"
    assert words[-3:] == ["train.py", "a b", "$HOME"]


def test_jobs_that_share_a_node_have_ports_of_their_own() -> None:
    (line,) = (line for line in render(SBATCH, ELASTIC).splitlines() if line.startswith("_elasticrun_port="))
    script = f"for SLURM_JOB_ID in {{1..{PORTS}}} 4294967295; do {line}; echo $_elasticrun_port; done"
    done = subprocess.run(["bash", "-euc", script], capture_output=True, text=True, check=True)
    *ports, last = map(int, done.stdout.split())
    assert sorted(ports) == [*range(FIRST_PORT, FIRST_PORT + PORTS)]
    assert last in ports


def test_texts_stay_texts_for_any_parser_and_notes_stay_comments() -> None:
    words = ["1e-4", "08", "5e3", "y", "0o17"]
    text = as_yaml(["one\n---\nkind: Evil"], [{"args": words}])
    assert all(f"- '{word}'" in text for word in words)
    assert text.splitlines()[:3] == ["# one", "# ---", "# kind: Evil"]
