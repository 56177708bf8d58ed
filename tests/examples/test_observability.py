"""Alerts, dashboard and commands of examples/observability, with promtool and a real Prometheus."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, cast
from urllib.parse import quote
from urllib.request import urlopen

import pytest
import yaml

from elasticrun.follower import Follower
from elasticrun.observer import metrics
from elasticrun.observer.exposition import PREFIX
from tests.observer.followed import everything
from tests.support.ports import free_port

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "examples/observability"
README = (FOLDER / "README.md").read_text()
COMMANDS = [
    line for block in re.findall(r"^```sh\n(.*?)^```", README, re.M | re.S) for line in block.splitlines()
]
DASHBOARD = json.loads((FOLDER / "dashboard.json").read_text())
ALERTS = yaml.safe_load((FOLDER / "alerts.yml").read_text())["groups"][0]["rules"]
#: What Grafana fills in.
FILLED = {"$instance": ".*", "$__rate_interval": "1m", "$__range": "1h", "$__interval": "1m"}
#: Scrapes after which a rate can be told of what the first two of them showed.
SCRAPES = 4
PATIENCE = 60.0


def needs(program: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(
        shutil.which(program) is None, reason=f"needs {program}: apt install prometheus"
    )


def queries() -> Iterator[tuple[str, str]]:
    """Each expression of the dashboard as Grafana asks it, with the title of its panel."""
    found = [(panel["title"], it["expr"]) for panel in DASHBOARD["panels"] for it in panel.get("targets", ())]
    for title, text in (*found, *((it["name"], it["expr"]) for it in DASHBOARD["annotations"]["list"])):
        query = text
        for name, value in FILLED.items():
            query = re.sub(re.escape(name) + r"\b", value, query)
        assert "$" not in query
        yield title, query


def test_only_metrics_that_exist_are_asked_for() -> None:
    known = set(re.findall(r"^(elasticrun_\w+)", everything().render(), re.M))
    asked = [*(text for _, text in queries()), *(rule["expr"] for rule in ALERTS)]
    asked.append(DASHBOARD["templating"]["list"][1]["definition"])
    named = {name for text in asked for name in re.findall(r"elasticrun_\w+", text)}
    assert named <= known
    assert len(named) > 25


def test_the_dashboard_asks_for_each_metric() -> None:
    families = {PREFIX + it.name for it in metrics.families(cast(Follower, everything()))}
    asked = " ".join([*(text for _, text in queries()), DASHBOARD["templating"]["list"][1]["definition"]])
    left_out = {"elasticrun_event_log_last_timestamp_seconds"}
    assert {name for name in families if name not in asked} == left_out


def test_the_dashboard_is_laid_out() -> None:
    panels = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken = set[tuple[int, int]]()
    for panel in panels:
        at = panel["gridPos"]
        assert at["x"] + at["w"] <= 24
        cells = {(at["x"] + x, at["y"] + y) for x in range(at["w"]) for y in range(at["h"])}
        assert not cells & taken, panel["title"]
        taken |= cells
    rows = [panel["title"] for panel in panels if panel["type"] == "row"]
    assert rows == [
        "Now",
        "Goodput",
        "Recoveries",
        "Nodes",
        "What workers use",
        "Saves",
        "The event log",
        "Shared data",
    ]


def test_each_alert_has_a_case_that_fires_and_one_that_does_not() -> None:
    cases = [
        case
        for test in yaml.safe_load((FOLDER / "alerts_test.yml").read_text())["tests"]
        for case in test["alert_rule_test"]
    ]
    for fires in (True, False):
        assert {it["alertname"] for it in cases if bool(it["exp_alerts"]) is fires} == {
            rule["alert"] for rule in ALERTS
        }


def test_commands_of_the_readme_are_known() -> None:
    assert {shlex.split(line)[0] for line in COMMANDS} == {"pip", "elastic-run", "promtool", "prometheus"}
    named = re.findall(r"(?<![\w/.-])examples/[\w./-]+", "\n".join(COMMANDS))
    assert [name for name in named if not (ROOT / name).exists()] == []
    files = set(re.findall(r"^\| `([\w.]+)` \|", README, re.M))
    assert files == {path.name for path in FOLDER.iterdir()} - {"README.md"}


@needs("promtool")
@pytest.mark.parametrize("command", [line for line in COMMANDS if line.startswith("promtool")])
def test_promtool_agrees(command: str) -> None:
    done = subprocess.run(shlex.split(command), cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


# -- a real Prometheus


class Target:
    """Answers scrapes as an observer does, and tells when there were some."""

    def __init__(self) -> None:
        self.scraped = threading.Semaphore(0)
        job, target = everything(), self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                assert self.path == "/metrics"
                body, kind = metrics.render(cast(Follower, job))
                self.send_response(200)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)
                target.scraped.release()

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"127.0.0.1:{self.server.server_address[1]}"


class Prometheus:
    """One that has scraped the target."""

    def __init__(self, address: str) -> None:
        self._url = f"http://{address}/api/v1/"

    def get(self, path: str) -> Any:
        with urlopen(self._url + path, timeout=PATIENCE) as answer:
            found = json.load(answer)
        assert found["status"] == "success"
        return found["data"]

    def query(self, text: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.get(f"query?query={quote(text)}")["result"]
        return found


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """Started by the README's command and configuration, but for ports, pace and where data go."""
    folder = tmp_path_factory.mktemp("prometheus")
    target = Target()
    serving = threading.Thread(target=target.server.serve_forever, args=(0.01,))
    serving.start()
    config = yaml.safe_load((FOLDER / "prometheus.yml").read_text())
    config["global"] = {"scrape_interval": "3s", "scrape_timeout": "3s", "evaluation_interval": "1s"}
    config["rule_files"] = [str(FOLDER / name) for name in config["rule_files"]]
    config["scrape_configs"][0]["static_configs"][0]["targets"] = [target.address]
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    address = f"127.0.0.1:{free_port()}"
    [line] = [line for line in COMMANDS if line.startswith("prometheus ")]
    command = line.replace("examples/observability", str(folder)).replace("127.0.0.1:9090", address)
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [*shlex.split(command), f"--storage.tsdb.path={folder}/data"], stdout=log, stderr=log
        )
        try:
            for _ in range(SCRAPES):
                assert target.scraped.acquire(timeout=PATIENCE), (folder / "log").read_text()
            yield Prometheus(address)
        finally:
            process.terminate()
            process.wait(PATIENCE)
            target.server.shutdown()
            serving.join()
            target.server.server_close()


@needs("prometheus")
def test_prometheus_takes_the_metrics(prometheus: Prometheus) -> None:
    [target] = prometheus.get("targets")["activeTargets"]
    assert (target["health"], target["lastError"]) == ("up", "")
    rendered = set(re.findall(r"^(elasticrun_\w+)", everything().render(), re.M))
    names = set(prometheus.get("label/__name__/values"))
    assert {name for name in names if name.startswith("elasticrun_")} == rendered
    [info] = prometheus.query("elasticrun_info")
    assert info["metric"]["job_id"] == "job"
    about = prometheus.get("metadata?metric=elasticrun_recovery_seconds")
    assert about["elasticrun_recovery_seconds"][0]["type"] == "histogram"


@needs("prometheus")
@pytest.mark.parametrize(("title", "query"), list(queries()))
def test_each_panel_of_the_dashboard_shows_something(prometheus: Prometheus, title: str, query: str) -> None:
    found = prometheus.query(query.removesuffix(" > 0"))
    assert found, title
    prometheus.query(query)


@needs("prometheus")
def test_the_query_of_the_readme_is_taken(prometheus: Prometheus) -> None:
    [query] = re.findall(r"^    (.*)$", README, re.M)
    [found] = prometheus.query(query)
    assert found["metric"]["job_id"] == "job"


@needs("prometheus")
def test_alerts_are_evaluated(prometheus: Prometheus) -> None:
    [group] = prometheus.get("rules")["groups"]
    assert [rule["name"] for rule in group["rules"]] == [rule["alert"] for rule in ALERTS]
    for rule in ALERTS:
        prometheus.query(rule["expr"])
    assert prometheus.query("time() - elasticrun_last_step_timestamp_seconds > 900")
