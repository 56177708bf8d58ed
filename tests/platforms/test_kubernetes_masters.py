"""How masters are asked: one that is pretended, slow, silent or wrong, and one at the end of a stream."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable, Coroutine
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import pytest

if not find_spec("kubernetes"):
    pytest.skip("needs kubernetes: pip install 'elasticrun[kubernetes]'", allow_module_level=True)

from elasticrun.core.fleet import training as timing
from elasticrun.core.fleet.figures import ANSWERED, Figures
from elasticrun.core.fleet.training import Shown, Speed, Trouble, training_of
from elasticrun.core.protocol.messages import AgentPhase
from elasticrun.core.protocol.orders import AwaitStatus, ControlReply, ControlRequest
from elasticrun.core.protocol.status import JobPhase, JobStatus, NodeStatus
from elasticrun.errors import MasterUnreachableError, ProtocolError, UnauthenticatedError
from elasticrun.platforms.kubernetes import masters as module
from elasticrun.platforms.kubernetes.api import ApiError
from elasticrun.platforms.kubernetes.masters import Masters, Place, Questions, TokenError
from elasticrun.rpc.server import Orders
from tests.rpc.harness import LOCKED, OPEN, TOKEN, Obedient, serving
from tests.support.processes import DEADLINE

STATUS = JobStatus("uid", JobPhase.RUNNING, 4, 1, 4, 2, 3, goodput=0.97, world=2, workers=8, cause="lost")
TOLD = training_of(STATUS)
PLACE = Place("default", "digits", "uid", ("10.0.0.1", "10.0.0.2"))
JOB = "default/digits"


def run(work: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        await asyncio.wait_for(work, DEADLINE)

    asyncio.run(bounded())


class Pretended:
    """Answers each question with the next of its answers; when there is none left, with nothing."""

    def __init__(self, *answers: JobStatus | Exception) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[Place, str, float]] = []
        self.under_way = self.most = 0
        self.was_asked = asyncio.Event()
        self.release = asyncio.Event()  # who waits for an answer that never comes

    async def __call__(self, place: Place, mark: str, wait: float) -> JobStatus:
        self.asked.append((place, mark, wait))
        self.was_asked.set()
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        try:
            if not self.answers:
                await self.release.wait()
                if not self.answers:
                    raise MasterUnreachableError("it was let go")
                self.release.clear()
            answer = self.answers.pop(0)
            if isinstance(answer, Exception):
                raise answer
            return answer
        finally:
            self.under_way -= 1

    async def count(self, questions: int) -> None:
        """Until so many questions were asked."""
        while len(self.asked) < questions:
            self.was_asked.clear()
            await self.was_asked.wait()


class Watch:
    """Hears of each job that has something new to show."""

    def __init__(self, masters: Masters) -> None:
        self.masters = masters
        self._happened = asyncio.Event()
        masters.notify(self._hear)

    def _hear(self, _job: str) -> None:
        self._happened.set()

    async def until(self, shown: Callable[[Shown | None], bool], job: str = JOB) -> Shown:
        while not shown(found := self.masters.shown(job)):
            self._happened.clear()
            await self._happened.wait()
        assert found is not None
        return found


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything at once: when is decided, and tested, elsewhere."""
    for name in ("GAP", "SLOW_GAP", "PATIENCE"):
        monkeypatch.setattr(timing, name, 0.0)
    monkeypatch.setattr(module, "SPACING", 0.0)
    monkeypatch.setattr(module, "pause_after", lambda _failures: 0.0)


def test_what_a_master_tells_is_shown_and_it_is_asked_for_what_is_new() -> None:
    async def main() -> None:
        ask = Pretended(STATUS, replace(STATUS, round=5))
        masters = Masters(ask)
        watch = Watch(masters)
        assert masters.shown(JOB) is None and masters.news(JOB, None) is None
        masters.know(JOB, PLACE)
        await watch.until(lambda it: it is not None and it.training is not None)
        shown = await watch.until(lambda it: it == Shown(replace(TOLD, round=5)))
        assert shown.trouble is None
        await ask.count(3)
        assert [(mark, wait) for _, mark, wait in ask.asked] == [
            ("", 0.0),
            (STATUS.mark, 25.0),
            (replace(STATUS, round=5).mark, 25.0),
        ]
        note = masters.news(JOB, 4)
        assert note is not None and note.text.startswith("round 5 was formed")
        assert masters.news(JOB, 4) is None, "it is told once"
        await masters.close()
        assert ask.under_way == 0
        masters.know(JOB, PLACE)
        assert masters.shown(JOB) is None

    run(main())


def test_a_speed_is_shown_until_it_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SETTLED", "SPEED_GAP"):
        monkeypatch.setattr(timing, name, 0.0)

    async def main() -> None:
        masters = Masters(Pretended(*(replace(STATUS, round=number, steps_rate=number) for number in (5, 6))))
        watch = Watch(masters)
        masters.kept(JOB, Speed(2, 8, 6.0))  # nobody knows that job
        masters.know(JOB, PLACE)
        last = await watch.until(lambda it: it is not None and it.speed is not None and it.speed.rate == 6)
        assert last.speed is not None and masters.shown(JOB) == last
        masters.kept(JOB, replace(last.speed, rate=5.0))
        assert masters.shown(JOB) == last, "that was another one"
        masters.kept(JOB, last.speed)
        assert masters.shown(JOB) == replace(last, speed=None)
        await masters.close()

    run(main())


def test_a_round_that_is_shown_already_is_not_told_again() -> None:
    async def main() -> None:
        masters = Masters(Pretended(STATUS))
        masters.know(JOB, PLACE)
        await Watch(masters).until(lambda it: it is not None and it.training is not None)
        assert masters.news(JOB, 4) is None
        assert masters.news(JOB, None) is None, "nor if a server drops what it does not know"
        await masters.close()

    run(main())


@pytest.mark.parametrize(
    ("error", "reason", "text"),
    [
        (MasterUnreachableError("nobody there"), "Unreachable", "nobody there"),
        (asyncio.TimeoutError(), "Unreachable", "did not answer in time"),
        (ProtocolError("no sense"), "Senseless", "no sense"),
        (UnauthenticatedError("another token"), "Refused", "another token"),
        (TokenError("no Secret"), "NoToken", "no Secret"),
        (ZeroDivisionError(), "Fault", "see its log"),
    ],
)
def test_what_was_told_last_stays_while_there_is_no_answer(error: Exception, reason: str, text: str) -> None:
    async def main() -> None:
        ask, figures = Pretended(STATUS, error), Figures()
        masters = Masters(ask, figures=figures)
        watch = Watch(masters)
        masters.know(JOB, PLACE)
        shown = await watch.until(lambda it: it is not None and it.trouble is not None)
        assert shown.training == TOLD
        assert shown.trouble is not None and shown.trouble.reason == reason and text in shown.trouble.text
        await ask.count(3)
        assert [place.addresses[0] for place, _, _ in ask.asked] == ["10.0.0.1", "10.0.0.1", "10.0.0.2"]
        assert ask.asked[2][1:] == ("", 0.0), "who was silent is asked how it is, and not what is new"
        ask.answers.append(STATUS)
        ask.release.set()
        await watch.until(lambda it: it == Shown(TOLD))
        assert {key: count for key, count in figures.questions.items() if count} == {ANSWERED: 2, reason: 1}
        await masters.close()

    run(main())


def test_who_is_stranded_is_news_at_once_and_believed_while_its_master_is_there() -> None:
    stranded = replace(STATUS, phase=JobPhase.GATHERING, stranded=3)

    async def main() -> None:
        ask = Pretended(STATUS, stranded)
        masters = Masters(ask)
        watch = Watch(masters)
        assert masters.stranded(JOB) == 0
        masters.know(JOB, PLACE)
        await watch.until(lambda _: masters.stranded(JOB) == 3)
        masters.know(JOB, replace(PLACE, addresses=("10.0.0.1", "10.0.0.3")))
        assert masters.stranded(JOB) == 3
        masters.know(JOB, replace(PLACE, addresses=("10.0.0.3",)))
        assert masters.stranded(JOB) == 0, "these replicas are others"
        masters.know(JOB, PLACE)
        assert masters.stranded(JOB) == 0
        await ask.count(3)
        ask.release.set()
        await masters.close()

    run(main())


def test_an_answer_of_a_master_that_is_gone_meanwhile_strands_nobody() -> None:
    async def main() -> None:
        ask = Pretended()
        masters = Masters(ask)
        watch = Watch(masters)
        masters.know(JOB, PLACE)
        await ask.count(1)
        masters.know(JOB, replace(PLACE, addresses=("10.0.0.3",)))
        ask.answers.append(replace(STATUS, stranded=3))
        ask.release.set()
        await watch.until(lambda it: it is not None and it.training is not None)
        assert masters.stranded(JOB) == 0
        await masters.close()

    run(main())


def test_a_silent_master_strands_nobody() -> None:
    async def main() -> None:
        ask = Pretended(replace(STATUS, stranded=3), MasterUnreachableError("nobody there"))
        masters = Masters(ask)
        watch = Watch(masters)
        masters.know(JOB, PLACE)
        await watch.until(lambda it: it is not None and it.trouble is not None)
        assert masters.stranded(JOB) == 0
        await masters.close()

    run(main())


def test_a_job_without_pods_is_not_asked_until_it_has_some() -> None:
    async def main() -> None:
        ask, figures = Pretended(STATUS), Figures()
        masters = Masters(ask, figures=figures)
        watch = Watch(masters)
        masters.know(JOB, replace(PLACE, addresses=()))
        shown = await watch.until(lambda it: it is not None)
        assert shown == Shown(None, Trouble("NoMaster", "no pod that may have the job's master runs"))
        assert ask.asked == [] and not any(figures.questions.values())
        masters.know(JOB, PLACE)
        await watch.until(lambda it: it == Shown(TOLD))
        await masters.close()

    run(main())


def test_of_many_jobs_few_are_asked_at_a_time_and_each_once() -> None:
    async def main() -> None:
        ask = Pretended()
        masters = Masters(ask, at_a_time=4)
        for number in range(200):
            masters.know(f"default/{number}", replace(PLACE, uid=str(number)))
            masters.know(f"default/{number}", replace(PLACE, uid=str(number)))
        await ask.count(4)
        assert (ask.most, len(ask.asked)) == (4, 4)
        ask.release.set()
        await ask.count(200)
        assert ask.most == 4
        assert {place.uid for place, _, _ in ask.asked[:200]} == {str(number) for number in range(200)}
        await masters.close()

    run(main())


def test_a_master_that_never_answers_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ANSWER_TIME", 0.01)

    async def main() -> None:
        masters = Masters(Pretended())
        masters.know(JOB, PLACE)
        shown = await Watch(masters).until(lambda it: it is not None)
        assert shown.trouble == Trouble("Unreachable", "the job's master did not answer in time")
        await masters.close()

    run(main())


def test_a_job_of_the_same_name_is_another_one() -> None:
    async def main() -> None:
        ask = Pretended(STATUS)
        masters = Masters(ask)
        watch = Watch(masters)
        masters.know(JOB, PLACE)
        await watch.until(lambda it: it is not None)
        masters.know(JOB, replace(PLACE, uid="other"))
        assert masters.shown(JOB) is None
        await ask.count(3)
        assert ask.asked[-1][0].uid == "other"
        masters.forget(JOB)
        masters.forget(JOB)
        assert masters.shown(JOB) is None
        await masters.close()

    run(main())


# -- a real stream


class Secrets:
    """An API server that has one Secret."""

    def __init__(self, *answers: object) -> None:
        self.answers = list(answers)
        self.paths: list[str] = []

    async def get(self, path: str, **_: str) -> Any:
        self.paths.append(path)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def secret(token: str) -> dict[str, Any]:
    return {"data": {"token": base64.b64encode(token.encode()).decode()}}


def test_a_real_master_is_asked_with_the_token_of_the_job() -> None:
    class Told(Obedient):
        async def answer(self, request: ControlRequest) -> ControlReply:
            self.orders.append(request)
            return ControlReply(True, "", status=STATUS)

    async def main() -> None:
        handler = Told()
        async with serving(security=LOCKED, orders=Orders(handler, "uid")) as (_, endpoint):
            api: Any = Secrets(secret(TOKEN[::-1]), secret(TOKEN))
            questions = Questions(api, endpoint.port)
            here = replace(PLACE, addresses=(endpoint.host,))
            with pytest.raises(UnauthenticatedError):
                await questions(here, "", 0.0)
            assert await questions(here, "", 0.0) == STATUS
            assert await questions(here, "4:running", 1.0) == STATUS
            assert handler.orders == [AwaitStatus("", 0.0), AwaitStatus("4:running", 1.0)]
            assert api.paths == 2 * ["/api/v1/namespaces/default/secrets/digits-token-uid"]
            questions.forget(here)
            api.answers.append(ApiError("away"))
            with pytest.raises(TokenError, match=r"^away$"):
                await questions(here, "", 0.0)

    run(main())


def test_an_answer_with_more_than_was_asked_for_makes_no_sense() -> None:
    class Told(Obedient):
        async def answer(self, request: ControlRequest) -> ControlReply:
            nodes = (NodeStatus("n", 0, AgentPhase.RUNNING),)
            return ControlReply(True, "", status=replace(STATUS, nodes=nodes))

    async def main() -> None:
        async with serving(security=LOCKED, orders=Orders(Told(), "uid")) as (_, endpoint):
            api: Any = Secrets(secret(TOKEN))
            with pytest.raises(ProtocolError, match="a status without nodes has some"):
                await Questions(api, endpoint.port)(replace(PLACE, addresses=(endpoint.host,)), "", 0.0)

    run(main())


def test_who_takes_no_orders_says_so() -> None:
    async def main() -> None:
        async with serving(security=OPEN, orders=Orders(Obedient(), "uid")) as (_, endpoint):
            api: Any = Secrets(secret(TOKEN))
            with pytest.raises(UnauthenticatedError, match="has no token"):
                await Questions(api, endpoint.port)(replace(PLACE, addresses=(endpoint.host,)), "", 0.0)

    run(main())


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (ApiError("no", 403), "there is no right to get the Secret digits-token-uid: apply what elastic-ctl"),
        (ApiError("no", 404), "there is no Secret digits-token-uid: suspend and resume the job"),
        ({}, "has no token: delete it"),
        ({"data": {"token": "%"}}, "has no token: delete it"),
        ({"data": {"token": base64.b64encode(b"\xff").decode()}}, "has no token: delete it"),
        ({"data": {"token": 5}}, "has no token: delete it"),
        ([], "has no token: delete it"),
    ],
)
def test_without_a_token_nobody_is_asked(answer: object, text: str) -> None:
    async def main() -> None:
        api: Any = Secrets(answer)
        with pytest.raises(TokenError, match=text):
            await Questions(api)(PLACE, "", 0.0)

    run(main())
