"""The page in a real browser, and the observer below a real launcher."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import sys
import threading
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("aiohttp", reason="needs the extra web")

from elasticrun.core.protocol import chronicle
from elasticrun.errors import ExitCode
from elasticrun.observer.changes import applied
from tests.support.cluster import WORKER, Cluster
from tests.support.launcher import ROOT
from tests.support.ports import free_port
from tests.support.processes import DEADLINE
from tests.support.watched import TOKEN, Pretended
from tests.support.web_site import Site, serving

HOSTILE = "<img src=x onerror='document.title=\"owned\"'>/1"
_FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Any]:
    """A headless Chromium."""
    webdriver = pytest.importorskip("selenium.webdriver", reason="needs selenium")
    chromium, driver = (
        shutil.which("chromium") or shutil.which("chromium-browser"),
        shutil.which("chromedriver"),
    )
    if chromium is None or driver is None:
        pytest.skip("needs chromium and chromedriver")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for flag in (*_FLAGS, f"--user-data-dir={tmp_path / 'profile'}", "--window-size=1280,1000"):
        options.add_argument(flag)
    made = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    try:
        yield made
    finally:
        made.quit()


class Served:
    """The page of a pretended job, served by a thread."""

    def __init__(self, followed: Pretended) -> None:
        self._ready = threading.Event()
        self._followed = followed
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=lambda: self._loop.run_until_complete(self._serve()))
        self._thread.start()
        assert self._ready.wait(DEADLINE)

    def do(self, work: Callable[[Site], None]) -> None:
        """Change the job in the server's thread, and publish that."""

        async def change() -> None:
            work(self._site)
            self._site.live.publish()

        asyncio.run_coroutine_threadsafe(change(), self._loop).result(DEADLINE)

    @property
    def url(self) -> str:
        return self._site.url

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join(DEADLINE)
        self._loop.close()

    async def _serve(self) -> None:
        self._over = asyncio.Event()
        async with serving(self._followed) as self._site:
            self._site.live.publish()
            self._ready.set()
            await self._over.wait()


@pytest.fixture
def serve() -> Iterator[Callable[[Pretended], Served]]:
    """Serves pages until the test is over."""
    made: list[Served] = []

    def start(followed: Pretended) -> Served:
        made.append(Served(followed))
        return made[-1]

    yield start
    for each in made:
        each.close()


def until(browser: Any, script: str, *arguments: object) -> Any:
    """Wait until a script of the page returns something true, and return that."""
    from selenium.webdriver.support.ui import WebDriverWait

    return WebDriverWait(browser, DEADLINE, 0.05).until(
        lambda it: it.execute_script(f"return ({script})", *arguments)
    )


def errors(browser: Any) -> list[Any]:
    """What the browser complains about."""
    return [each for each in browser.get_log("browser") if each["level"] == "SEVERE"]


def test_a_page_shows_the_job_and_what_changes(browser: Any, serve: Callable[[Pretended], Served]) -> None:
    job = Pretended(2, 3)
    job.status = job.describe()
    served = serve(job)
    browser.get(served.url)
    assert until(browser, "document.getElementById('job').textContent === 'llm-pretrain'")
    assert until(browser, "document.querySelectorAll('#table tbody tr').length === 2")
    assert until(browser, "document.querySelectorAll('#timeline .mark').length > 0")
    served.do(lambda site: site.followed.tell(chronicle.NodeDetached(job.name(1), "its stream ended")))
    assert until(browser, "document.querySelector('#states').textContent.includes('1 away')")
    served.do(lambda site: site.followed.tell(chronicle.JobEnded("succeeded", "all workers ended with 0")))
    assert until(browser, "document.getElementById('phase').textContent === 'succeeded'")
    assert until(browser, "document.title.startsWith('succeeded')")
    assert errors(browser) == []


def test_hostile_names_are_shown_as_text(browser: Any, serve: Callable[[Pretended], Served]) -> None:
    job = Pretended(2, 1)
    job.tell(chronicle.NodeJoined(HOSTILE, HOSTILE, 1, False))
    job.tell(chronicle.Decision("running", 0, HOSTILE))
    job.tell(chronicle.WorkerFailed(0, HOSTILE, HOSTILE, 0, 0, 1, HOSTILE, 1, 1, HOSTILE))
    browser.get(serve(job).url)
    assert until(browser, "document.getElementById('table').textContent.includes(arguments[0])", HOSTILE)
    assert browser.execute_script("return document.querySelectorAll('main img, main script').length") == 0
    assert "owned" not in browser.title


def test_a_thousand_nodes_can_be_walked_by_keys(browser: Any, serve: Callable[[Pretended], Served]) -> None:
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.keys import Keys

    job = Pretended(1000, 2)
    job.status = job.describe()
    browser.get(serve(job).url)
    assert until(browser, "document.querySelectorAll('#grid button').length === 1000")
    focusable = "document.querySelectorAll('#grid button[tabindex=\"0\"]').length"
    assert browser.execute_script(f"return {focusable}") == 1
    for _ in range(30):  # to the grid, by nothing but Tab
        ActionChains(browser).send_keys(Keys.TAB).perform()
        if browser.execute_script("return !!document.activeElement.closest('#grid')"):
            break
    named = "document.activeElement.dataset.name"
    assert browser.execute_script(f"return {named}") == job.name(0)
    ActionChains(browser).send_keys(Keys.ARROW_RIGHT, Keys.ARROW_RIGHT).perform()
    assert browser.execute_script(f"return {named}") == job.name(2)
    ActionChains(browser).send_keys(Keys.ARROW_DOWN, Keys.END).perform()
    assert browser.execute_script(f"return {named}") == job.name(999)
    ActionChains(browser).send_keys(Keys.ENTER).perform()
    assert until(browser, "document.getElementById('node').open")
    assert browser.execute_script("return document.getElementById('node-h').textContent") == job.name(999)
    ActionChains(browser).send_keys(Keys.ESCAPE).perform()
    assert until(browser, "!document.getElementById('node').open")
    assert browser.execute_script(f"return {named}") == job.name(999)  # the focus is back


def test_a_login_gives_the_right_to_order(browser: Any, serve: Callable[[Pretended], Served]) -> None:
    job = Pretended(2, 1)
    job.status = job.describe()
    browser.get(serve(job).url)
    assert until(browser, "!document.getElementById('login-button').hidden")
    assert browser.execute_script("return document.getElementById('orders-button').hidden")
    for token in ("wrong", TOKEN):
        if token == "wrong":
            browser.find_element("id", "login-button").click()
        browser.find_element("id", "token").clear()
        browser.find_element("id", "token").send_keys(token)
        browser.find_element("css selector", "#login-form [type=submit]").click()
        if token == "wrong":
            assert until(browser, "document.getElementById('login-error').textContent.includes('not the')")
    assert until(browser, "!document.getElementById('orders-button').hidden")
    browser.find_element("id", "orders-button").click()
    browser.find_element("css selector", "#scale-form button").click()
    assert until(browser, "document.getElementById('orders-answer').textContent === 'scale: it is done'")
    assert job.pretend.orders == [("scale", 1, 2)]
    assert browser.execute_script("return document.cookie") == ""


# -- below a real launcher


def states(port: int) -> Iterator[Any]:
    """The states that the page tells of, until it is gone."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    state: Any = {}
    with opener.open(f"http://127.0.0.1:{port}/api/events", timeout=DEADLINE) as stream:
        for line in stream:
            if line.startswith(b"data: "):
                told = json.loads(line.removeprefix(b"data: "))
                state = applied(state, told) if "after" in told else told
                yield state


def running(port: int) -> Any:
    """The first of them in which a round runs."""
    return next(state for state in states(port) if state["job"]["phase"] == "running" and state["rounds"])


def observer_of(pid: int) -> int:
    """The pid of a launcher's observer."""
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        if b"elasticrun.observer" in Path(f"/proc/{child}/cmdline").read_bytes():
            return int(child)
    raise AssertionError("there is no observer")


def test_a_launcher_serves_its_job_and_starts_a_killed_observer_again(cluster: Cluster) -> None:
    port = free_port()
    launcher = cluster.alone("--web", f":{port}")
    worker = cluster.director.round(0, 1)[0]
    launcher.wait_line("web page: ")
    assert [row["number"] for row in running(port)["rounds"]] == [0]
    first = observer_of(launcher.pid)
    assert os.getpriority(os.PRIO_PROCESS, first) >= 10
    assert Path(f"/proc/{first}/oom_score_adj").read_text().strip() == "1000"
    os.kill(first, signal.SIGKILL)
    launcher.wait_line("it is started again")
    # The port was never closed: this waits until the next observer takes the connection.
    assert [row["number"] for row in running(port)["rounds"]] == [0]
    assert observer_of(launcher.pid) != first
    seen = states(port)
    next(seen)
    worker.tell("exit 0")
    assert [*seen][-1]["job"]["phase"] == "succeeded", "the page is gone before it tells the end"
    cluster.wait_all()


def test_a_launcher_that_is_killed_leaves_no_observer(cluster: Cluster) -> None:
    port = free_port()
    launcher = cluster.alone("--web", f":{port}", env={"LOGLEVEL": "INFO"})
    cluster.director.round(0, 1)
    launcher.wait_line("web page: ")
    pidfd = os.pidfd_open(observer_of(launcher.pid))
    os.kill(launcher.pid, signal.SIGKILL)
    signal.pidfd_send_signal(pidfd, 0)  # it was alive; its end is waited for below
    import select

    ended, _, _ = select.select([pidfd], [], [], DEADLINE)
    os.close(pidfd)
    assert ended


def test_what_is_wrong_with_the_page_is_told_before_anything_starts(cluster: Cluster) -> None:
    import socket

    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        taken = cluster.launch("--standalone", "--web", f":{port}", WORKER)
        assert taken.wait() == ExitCode.ENDPOINT_TAKEN
        assert "another program has this port" in taken.story()
    open_ = cluster.launch("--standalone", "--no-token", "--web", "0.0.0.0:0", WORKER)
    assert open_.wait() == ExitCode.USAGE
    assert "no token to log in with" in open_.story()


def test_a_page_is_served_from_beside_a_job(cluster: Cluster) -> None:
    """By elastic-ctl observe, which ends with Ctrl-C, and does not begin without a job."""
    port = free_port()
    launcher = cluster.node("1")
    worker = cluster.director.round(0, 1)[0]
    ctl = (sys.executable, "-m", "elasticrun.cli.ctl")
    observer = cluster.launch(
        "observe", "--web", f":{port}", "--pid", str(launcher.pid), command=ctl, cwd=ROOT
    )
    observer.wait_line(f"web page: http://127.0.0.1:{port}/")
    assert [row["number"] for row in running(port)["rounds"]] == [0]
    observer.signal(signal.SIGINT)
    assert observer.wait() == 0
    # The job that runs here is not at that endpoint.
    nowhere = ("--endpoint", f"127.0.0.1:{free_port()}", "--rdzv-id", "job", "--timeout", "1")
    token = {"ELASTICRUN_TOKEN": TOKEN}
    nobody = cluster.launch("observe", "--web", ":0", *nowhere, command=ctl, cwd=ROOT, env=token)
    assert nobody.wait() == ExitCode.MASTER_UNREACHABLE
    wrong = cluster.launch("observe", "--web", "nowhere", command=ctl, cwd=ROOT)
    assert wrong.wait() == ExitCode.USAGE
    assert "give [HOST]:PORT" in wrong.story()
    worker.tell("exit 0")
    assert launcher.wait() == 0


def test_without_aiohttp_the_launcher_says_what_to_install(cluster: Cluster) -> None:
    code = (
        "import sys, importlib.util as u; find = u.find_spec;"
        "u.find_spec = lambda name, *rest: None if name == 'aiohttp' else find(name, *rest);"
        "from elasticrun.cli.main import main; sys.exit(main(sys.argv[1:]))"
    )
    launcher = cluster.launch("--standalone", "--web", ":0", WORKER, command=(sys.executable, "-c", code))
    assert launcher.wait() == ExitCode.USAGE
    assert "pip install 'elasticrun[web]'" in launcher.story()
