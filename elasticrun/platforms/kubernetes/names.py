"""Names that the parts of this folder, and people, know the operator's objects by."""

from __future__ import annotations

import re

GROUP, VERSION, PLURAL, KIND = "elasticrun.io", "v1alpha1", "elasticjobs", "ElasticJob"
API_VERSION = f"{GROUP}/{VERSION}"
#: The kinds of operations, by plural.
OPERATIONS = {"scaleouts": "ScaleOut", "scaleins": "ScaleIn"}
#: On each pod; selects the pods of a job.
JOB_LABEL = f"{GROUP}/job"
#: On each pod of a job with several roles.
ROLE_LABEL = f"{GROUP}/role"
INDEX_LABEL, SLOT_LABEL, UID_LABEL = f"{GROUP}/index", f"{GROUP}/slot", f"{GROUP}/job-uid"
#: On each pod that requests what was measured.
SIZED = f"{GROUP}/sized"
PORT = 29400
#: So that names of pods and hosts stay within the 63 characters of a DNS label.
LONGEST_NAME = 50
#: Of one job.
MOST_REPLICAS = 10_000
#: Of a role, which is the value of a label.
ROLE_PATTERN, LONGEST_ROLE = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", 63
#: Of a job.
NAME_PATTERN = "^[a-z]([-a-z0-9]*[a-z0-9])?$"


def is_job_name(text: object) -> bool:
    """Whether a job may have this name. Paths are made of it, so it must not lead elsewhere."""
    return (
        isinstance(text, str) and len(text) <= LONGEST_NAME and re.fullmatch(NAME_PATTERN, text) is not None
    )


def job_path(namespace: str, name: str, part: str = "") -> str:
    """Where a job is found, or a part of it such as its status."""
    return f"/apis/{API_VERSION}/namespaces/{namespace}/{PLURAL}/{name}{part and '/' + part}"


def operation_path(namespace: str, plural: str, name: str) -> str:
    """Where the status of an operation is found."""
    return f"/apis/{API_VERSION}/namespaces/{namespace}/{plural}/{name}/status"


def core_path(namespace: str, kind: str, name: str = "") -> str:
    """Where objects of a kind such as "pods" are found, or one of them."""
    return f"/api/v1/namespaces/{namespace}/{kind}{name and '/' + name}"


def pod_name(job: str, index: int) -> str:
    """The same index gives the same name, so that nobody can start it twice.

    The role is a label, and no part of it: pod ``a-b-0`` could else be of role b in job a, or of job a-b.
    """
    return f"{job}-{index}"


def service_name(job: str, uid: str) -> str:
    """Of the headless Service that gives slots their names.

    With a part of the job's uid: that of an earlier job of this name may still be there, and go soon.
    """
    return f"{job}-{uid[:8]}"


def secret_name(job: str, uid: str) -> str:
    """Of the Secret with the job's token; likewise."""
    return f"{job}-token-{uid[:8]}"


def slot_host(job: str, slot: int) -> str:
    """The host name of whoever has this slot."""
    return f"{job}-m{slot}"


def endpoints(job: str, uid: str, slots: int) -> str:
    """The value of ``--rdzv-endpoint``."""
    return ",".join(f"{slot_host(job, slot)}.{service_name(job, uid)}:{PORT}" for slot in range(slots))
