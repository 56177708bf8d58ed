"""The API server, by the official client: requests as plain JSON.

Only the transport of the client is used: credentials, TLS, proxies, retries. Its models of a thousand kinds
would have to be converted forth and back, and know nothing of ours.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import aiohttp
from kubernetes.aio import config
from kubernetes.aio.client.api_client import ApiClient
from kubernetes.aio.client.configuration import Configuration

from elasticrun.core.fleet.figures import Figures
from elasticrun.core.protocol.plain import one_line
from elasticrun.platforms.protocol import PlatformError

_TIMEOUT = 30.0  # seconds of one request
_SHOWN = 300
CONFLICT, FORBIDDEN, NOT_FOUND = 409, 403, 404
_UNKNOWN = 401  # who asks
_LATE, _TOO_MANY = 408, 429
#: How a change of a part is written.
MERGE = "application/merge-patch+json"


class ApiError(PlatformError):
    """The server refused; ``status`` is that of HTTP, and 0 if it did not answer."""

    def __init__(self, text: str, status: int = 0, reason: str = "") -> None:
        super().__init__(text)
        self.status = status
        self.reason = reason

    @property
    def is_final(self) -> bool:
        """Whether the same request would be refused again."""
        return 400 <= self.status < 500 and self.status not in (_UNKNOWN, _LATE, _TOO_MANY)


async def access(kubeconfig: str | None) -> Any:
    """Where the server is, and what to say to it: by this file, else by the service account of this pod.

    Raises PlatformError.
    """
    settings = Configuration()
    try:
        if kubeconfig:
            await config.load_kube_config(config_file=kubeconfig, client_configuration=settings)
        else:
            config.load_incluster_config(client_configuration=settings)
    except (config.ConfigException, OSError) as error:
        raise PlatformError(f"no access to an API server: {one_line(str(error))}") from None
    return settings


class Api:
    """Requests to one API server."""

    def __init__(
        self,
        client: Any,
        renew: Callable[[], Awaitable[Any]] | None = None,
        figures: Figures | None = None,
    ) -> None:
        """``renew``: gives the access anew, once what was said to the server holds no more."""
        self._client = client
        self._renew = renew
        self._figures = figures or Figures()

    @classmethod
    async def connect(cls, kubeconfig: str | None, figures: Figures | None = None) -> Api:
        """A client with this access, which is that of ``access``. Raises PlatformError."""
        return cls(ApiClient(await access(kubeconfig)), lambda: access(kubeconfig), figures)

    async def close(self) -> None:
        """Close the connections."""
        await self._client.close()

    async def get(self, path: str, **query: str) -> Any:
        return await self._request("GET", path, query=query)

    async def create(self, path: str, body: Mapping[str, Any]) -> Any:
        return await self._request("POST", path, body)

    async def delete(self, path: str) -> Any:
        return await self._request("DELETE", path)

    async def merge(self, path: str, body: Mapping[str, Any]) -> Any:
        """Change the given parts of an object."""
        return await self._request("PATCH", path, body, content=MERGE)

    async def _request(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        content: str = "application/json",
        query: Mapping[str, str] | None = None,
    ) -> Any:
        status, data = await self._send(method, path, body, content, query)
        if status == _UNKNOWN and self._renew is not None:
            self._client.configuration = await self._renew()
            status, data = await self._send(method, path, body, content, query)
        if not 200 <= status < 300:
            raise _refusal(status, data)
        try:
            return json.loads(data)
        except ValueError:
            raise ApiError(f"the API server's answer is no JSON: {method} {path}") from None

    async def _send(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None,
        content: str,
        query: Mapping[str, str] | None,
    ) -> tuple[int, bytes]:
        status = 0
        headers = {"Accept": "application/json", "Content-Type": content}
        try:
            prepared = await self._client.param_serialize(
                method,
                path,
                query_params=list((query or {}).items()),
                header_params=headers,
                body=body,
                auth_settings=["BearerToken"],
            )
            answer = await self._client.call_api(*prepared, _request_timeout=_TIMEOUT)
            data = await answer.read()
            status = answer.status
            return status, data
        except (aiohttp.ClientError, asyncio.TimeoutError, OSError) as error:
            what = one_line(str(error)) or type(error).__name__
            raise ApiError(f"the API server does not answer: {what}") from None
        finally:
            self._figures.requested(method, status)


def _refusal(status: int, data: bytes) -> ApiError:
    try:
        told = json.loads(data)
        text, reason = str(told["message"]), str(told.get("reason", ""))
    except (ValueError, KeyError, TypeError, AttributeError):
        text, reason = data.decode(errors="replace"), ""
    return ApiError(f"the API server refuses ({status}): {one_line(text)[:_SHOWN]}", status, reason)
