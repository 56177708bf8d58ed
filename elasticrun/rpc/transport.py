"""What both ends of the stream agree on below the messages: the methods, the limits, gRPC's options.

Payloads pass through gRPC as plain bytes, so that malformed ones reach our codec and are answered with
a typed rejection. A peer whose host went silent is found by HTTP/2 pings, sent by both sides after
PING_INTERVAL of silence and answered by gRPC's core even while Python is busy. The timer that sends them may
be late by TIMER_SLACK. The kernel notices in time, as gRPC asks it to, if nothing is acknowledged within
PING_TIMEOUT; gRPC finds a frozen peer whose kernel lives, late by TIMER_SLACK once more.
"""

from __future__ import annotations

from collections.abc import Iterable

import grpc.aio

from elasticrun.config import Endpoint, TlsConfig
from elasticrun.core.protocol.messages import Rejected
from elasticrun.errors import ProtocolError
from elasticrun.rpc import codec
from elasticrun.rpc.codec import MAX_MESSAGE_BYTES, REJECTED_KEY

SERVICE = "elasticrun.v1.Master"
METHOD = "Attach"
CONTROL_METHOD = "Control"
PATH = f"/{SERVICE}/{METHOD}"
CONTROL_PATH = f"/{SERVICE}/{CONTROL_METHOD}"

#: Seconds of silence before a ping, and seconds to wait for its answer: a dead host is known after their sum,
#: and within TIMER_SLACK of it, so after 4.5 at most.
PING_INTERVAL = 1.5
PING_TIMEOUT = 2.0

_Options = tuple[tuple[str, int], ...]

_COMMON: _Options = (
    ("grpc.keepalive_time_ms", int(PING_INTERVAL * 1000)),
    ("grpc.keepalive_timeout_ms", int(PING_TIMEOUT * 1000)),
    # Without this, gRPC 1.85 closes the connection to a frozen peer after a minute, whatever
    # keepalive_timeout says.
    ("grpc.http2.ping_timeout_ms", int(PING_TIMEOUT * 1000)),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    # No extra ping and wake-up with each message to measure the bandwidth.
    ("grpc.http2.bdp_probe", 0),
    # Above our own limit: what lies between the two gets our own sentence instead of gRPC's. Not far above,
    # as core collects a message of that size for a stranger before we see any of it.
    ("grpc.max_receive_message_length", 2 * MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", -1),
)

SERVER_OPTIONS: _Options = (
    *_COMMON,
    # Two masters on one port would split the job.
    ("grpc.so_reuseport", 0),
    # Agents ping more often than gRPC's default policy tolerates.
    ("grpc.http2.min_ping_interval_without_data_ms", int(PING_INTERVAL * 1000) // 2),
    ("grpc.http2.max_ping_strikes", 0),
    # What a stream may send before it is read. Core makes room for a larger message once it has begun.
    ("grpc.http2.lookahead_bytes", 65_536),
    # For how many milliseconds strangers may hold a connection without a stream, and how many streams they
    # may put on one. An agent has one stream for each connection.
    ("grpc.server_handshake_timeout_ms", 10_000),
    ("grpc.max_connection_idle_ms", 30_000),
    ("grpc.max_concurrent_streams", 100),
    # Requests that wait in core for Python. From the first number on core refuses at random, and from the
    # second all, without a reason. Both are above what the Gate admits, which gives a reason.
    ("grpc.server.max_pending_requests", 4352),
    ("grpc.server.max_pending_requests_hard_limit", 6144),
)

CLIENT_OPTIONS: _Options = (
    *_COMMON,
    # Any message of the master's fits the window.
    ("grpc.http2.lookahead_bytes", MAX_MESSAGE_BYTES),
    # Each attempt has a connection of its own and none of gRPC's back-off or retries.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_retries", 0),
    # The address is already resolved; nothing else may be asked or used on the way to it.
    ("grpc.enable_http_proxy", 0),
    ("grpc.service_config_disable_resolution", 1),
)


def open_channel(target: str, endpoint: Endpoint, tls: TlsConfig | None) -> grpc.aio.Channel:
    """A channel to the resolved ``target`` of an endpoint.

    With ``tls`` the certificate must be for the endpoint's name, or address, as the user wrote it. Raises
    UsageError for a file that cannot be read.
    """
    if tls is None:
        return grpc.aio.insecure_channel(target, options=CLIENT_OPTIONS)
    from elasticrun.rpc.security.tls import channel_credentials

    options = (*CLIENT_OPTIONS, ("grpc.ssl_target_name_override", endpoint.host))
    return grpc.aio.secure_channel(target, channel_credentials(tls), options=options)


def rejected_in(metadata: Iterable[tuple[str, str | bytes]]) -> Rejected | None:
    """Why the stream was refused at the door, if it was."""
    for key, value in metadata:
        if key == REJECTED_KEY and isinstance(value, bytes):
            try:
                message, *_ = codec.decode_master(value)
            except ProtocolError:
                return None
            return message if isinstance(message, Rejected) else None
    return None
