"""A pretended job, and its page on a port of its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

aiohttp = pytest.importorskip("aiohttp", reason="needs the extra web")

from elasticrun.config import Endpoint  # noqa: E402
from elasticrun.observer.listening import listen  # noqa: E402
from elasticrun.observer.live import Live  # noqa: E402
from elasticrun.observer.serving import serve  # noqa: E402
from tests.support.watched import TOKEN, Pretended, pages  # noqa: E402


class Site:
    """A page that is served."""

    def __init__(self, followed: Pretended, live: Live, url: str) -> None:
        self.followed = followed
        self.live = live
        self.url = url
        self.host = url.removeprefix("http://")


@asynccontextmanager
async def serving(
    followed: Pretended, token: str | None = TOKEN, *, is_open: bool = True, most: int = 500
) -> AsyncIterator[Site]:
    """The page of a job, published by hand: ``site.live.publish()``."""
    live = Live(followed, most)
    app = pages(followed, live, token, is_open=is_open).app()
    listener = listen(Endpoint("127.0.0.1", 0))
    async with AsyncExitStack() as stack:
        await serve(app, listener, stack)
        yield Site(followed, live, f"http://127.0.0.1:{listener.getsockname()[1]}")


class Browser:
    """Sends requests, with the cookies that it was given."""

    def __init__(self, session: Any) -> None:
        self._session = session

    async def request(self, method: str, url: str, **how: Any) -> Any:
        """An answer that is read as a whole."""
        async with self._session.request(method, url, **how) as answer:
            await answer.read()
            return answer

    async def get(self, url: str, **how: Any) -> Any:
        return await self.request("GET", url, **how)

    async def post(self, url: str, **how: Any) -> Any:
        return await self.request("POST", url, **how)

    def stream(self, url: str, **how: Any) -> Any:
        """An answer that goes on; a context manager."""
        return self._session.get(url, **how)


Use = Callable[[Site, Browser], Awaitable[None]]


def with_site(use: Use, *, nodes: int = 3, rounds: int = 2, **how: Any) -> None:
    """Run ``use(site, browser)``."""

    async def work() -> None:
        jar = aiohttp.CookieJar(unsafe=True)  # cookies of numeric hosts too
        async with (
            serving(Pretended(nodes, rounds), **how) as site,
            aiohttp.ClientSession(cookie_jar=jar) as it,
        ):
            await asyncio.wait_for(use(site, Browser(it)), 60)

    asyncio.run(work())
