"""Mutual TLS: both ends show a certificate that the job's authority signed.

gRPC's core brings its own TLS, so Python's is never imported. What core says about a handshake that failed is
in the details of a status; here it becomes an error that names the file to look at. TLS does not tell an end
why its certificate was refused; it only sees that the connection is closed.
"""

from __future__ import annotations

from pathlib import Path

import grpc

from elasticrun.config import Endpoint, TlsConfig
from elasticrun.errors import ElasticRunError, UnauthenticatedError, UsageError

_OTHER_NAME = (
    "the certificate of the master at {endpoint} is for another name than {host}: "
    "name the host in --rdzv-endpoint as its --tls-cert does"
)

#: What core writes -> what it means; the first match counts. {endpoint} and {host} are filled in.
_MEANINGS: tuple[tuple[str, str], ...] = (
    (
        "has expired",
        "the certificate of the master at {endpoint} has expired: give its host a new --tls-cert",
    ),
    (
        "not yet valid",
        "the certificate of the master at {endpoint} is not valid yet: look at the clocks of both hosts",
    ),
    (
        "CERTIFICATE_VERIFY_FAILED",
        "the certificate of the master at {endpoint} is not signed by the authority of --tls-ca: "
        "give every node the same --tls-ca, and a certificate that it signed",
    ),
    ("Hostname Verification", _OTHER_NAME),
    ("is not in peer certificate", _OTHER_NAME),  # gRPC before it had that check
    (
        "WRONG_VERSION_NUMBER",
        "{endpoint} answers without TLS: give every node --tls-ca, --tls-cert and --tls-key, or none",
    ),
    (
        "security handshaker",
        "--tls-ca, --tls-cert and --tls-key of this node cannot be used: each must be PEM, "
        "and the key must belong to the certificate",
    ),
    (
        "Socket closed",
        "{endpoint} ends the TLS handshake: it may not accept the certificate of this node, "
        "if that has expired or another authority signed it than that of the master's --tls-ca",
    ),
)


def channel_credentials(tls: TlsConfig) -> grpc.ChannelCredentials:
    """The agent's side. Raises UsageError for a file that cannot be read."""
    ca, cert, key = _read(tls)
    return grpc.ssl_channel_credentials(ca, key, cert)


def server_credentials(tls: TlsConfig) -> grpc.ServerCredentials:
    """The master's side, which requires a certificate of each client. Raises UsageError likewise."""
    ca, cert, key = _read(tls)
    return grpc.ssl_server_credentials([(key, cert)], ca, require_client_auth=True)


def unusable(tls: TlsConfig) -> UsageError:
    """The error for files that can be read but not served with."""
    return UsageError(
        f"the master cannot use {tls.ca}, {tls.cert} and {tls.key}: --tls-ca, --tls-cert and --tls-key must "
        "be PEM files, and the key must belong to the certificate"
    )


def explain(details: str, endpoint: Endpoint) -> ElasticRunError | None:
    """The error for core's message about a failed handshake; None if it is about something else."""
    for words, meaning in _MEANINGS:
        if words in details:
            return UnauthenticatedError(meaning.format(endpoint=endpoint, host=endpoint.host))
    return None


def _read(tls: TlsConfig) -> tuple[bytes, bytes, bytes]:
    return _bytes("--tls-ca", tls.ca), _bytes("--tls-cert", tls.cert), _bytes("--tls-key", tls.key)


def _bytes(flag: str, path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise UsageError(f"{flag} {path!r} cannot be read: {error.strerror}; name a PEM file") from None
