"""Which local ranks share a warm parent, and what it is started with."""

from __future__ import annotations

import sys
from dataclasses import replace

from elasticrun.agent.programs import INJECTED
from elasticrun.agent.workers.env import common_environment, worker_environment
from elasticrun.agent.workers.warm_recipes import probe_key, server_recipe, warm_keys, warm_recipes
from elasticrun.config import Entrypoint, EntrypointKind, TaskRole, WorkerConfig
from elasticrun.core.protocol.messages import Assignment

SCRIPT = Entrypoint(EntrypointKind.SCRIPT, "train.py", ("--out=${local_rank}",), python=sys.executable)
ENV = (("HOME", "/home/a"), ("OMP_NUM_THREADS", "2"), ("RANK", "old"), ("CUDA_VISIBLE_DEVICES", "4,5,6"))
CONFIG = WorkerConfig(
    SCRIPT,
    local_world_size=3,
    env=ENV,
    signals=(15,),
    file_timer="/t",
    warm_imports=("torch", "json"),
    warm_later=("torch._dynamo",),
)


def keys(config: WorkerConfig, *cpus: frozenset[int]) -> list[str]:
    return [recipe.key for recipe in warm_recipes(config, cpus)]


def test_local_ranks_share_a_parent_although_their_arguments_differ() -> None:
    assert keys(CONFIG) == ["0", "0", "0"]
    (recipe, *_) = warm_recipes(CONFIG, ())
    assert recipe.argv == [sys.executable, "-u", "train.py", "--out=0"]
    assert recipe.terms == "unset:torch,json;torch._dynamo:auto"


def test_what_is_imported_later() -> None:
    for imports, terms in ((("json",), "json;torch._dynamo"), (("torch._dynamo", "a"), "torch._dynamo,a")):
        (recipe, *_) = warm_recipes(replace(CONFIG, warm_imports=imports), ())
        assert recipe.terms == f"unset:{terms}:auto"


def test_what_matters_to_imports_keeps_them_apart() -> None:
    assert keys(replace(CONFIG, virtual_local_rank=True)) == ["0", "1", "2"]
    assert keys(CONFIG, frozenset({0}), frozenset({1}), frozenset({0})) == ["0", "1", "0"]


def test_who_is_added_to_a_round_is_forked_from_a_parent_that_is_bound_to_nothing() -> None:
    found = warm_keys(CONFIG, ())
    assert [found.of(local_rank) for local_rank in (0, 2, 3, 9)] == ["0"] * 4
    bound = warm_keys(CONFIG, (frozenset({0}), frozenset({0}), frozenset({0})))
    assert [bound.of(local_rank) for local_rank in (2, 3)] == ["0", None]
    for other in (
        replace(CONFIG, virtual_local_rank=True, local_world_size=1),
        replace(CONFIG, warm_imports=None, local_world_size=1),
    ):
        assert warm_keys(other, ()).of(1) is None


def test_the_place_in_a_cluster_is_no_part_of_the_environment() -> None:
    served = replace(CONFIG, roles=(TaskRole.CHIEF, TaskRole.WORKER, TaskRole.PS))
    assert keys(served) == ["0", "0", "0"]
    assert common_environment(served, 1) == common_environment(CONFIG, 1)


def test_the_environment_is_what_all_rounds_have_in_common() -> None:
    common = common_environment(CONFIG, 1)
    assert common == {
        "HOME": "/home/a",
        "OMP_NUM_THREADS": "2",
        "CUDA_VISIBLE_DEVICES": "4,5,6",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
    }
    assignment = Assignment(7, 1, 3, 4, 12, 2, 10, "10.0.0.1", 4567, 2, 5)
    assert common.items() <= worker_environment(CONFIG, "job", assignment, 1, "/logs/error.json").items()


def test_the_users_path_comes_behind_ours() -> None:
    config = replace(CONFIG, env=(("PYTHONPATH", "/lib"),))
    (recipe, *_) = warm_recipes(config, ())
    assert recipe.env["PYTHONPATH"] == f"{INJECTED}:/lib"
    assert recipe.terms.startswith("set:")


def test_the_probe_is_forked_where_torch_is_imported_in_its_environment() -> None:
    assert probe_key(CONFIG) == "0" == warm_recipes(CONFIG, ())[0].key
    for other in (
        replace(CONFIG, virtual_local_rank=True),
        replace(CONFIG, warm_imports=("json",)),
        replace(CONFIG, warm_imports=None),
    ):
        assert probe_key(other) is None


SERVED = replace(
    CONFIG,
    servers=Entrypoint(EntrypointKind.MODULE, "serve", python="/bin/python"),
    server_imports=("serve.ahead",),
)


def test_servers_have_a_parent_of_their_own() -> None:
    recipe = server_recipe(SERVED, ())
    assert recipe is not None
    assert recipe.argv == ["/bin/python", "-u", "-m", "serve"]
    assert recipe.terms == "unset:serve.ahead:auto"
    assert recipe.env == warm_recipes(SERVED, ())[0].env
    found = warm_keys(SERVED, ())
    assert found.servers == recipe.key
    assert recipe.key not in found.first
    assert warm_keys(replace(SERVED, warm_imports=None), ()).servers == recipe.key  # the script may be cold


def test_servers_that_see_different_devices_or_cpus_start_cold() -> None:
    bound = (frozenset({0}), frozenset({0}), frozenset({0}))
    assert warm_keys(SERVED, bound).servers is None
    for other in (
        replace(SERVED, virtual_local_rank=True),
        replace(SERVED, server_imports=None),
        replace(SERVED, servers=None),
    ):
        assert warm_keys(other, ()).servers is None


def test_no_recipe() -> None:
    assert warm_recipes(replace(CONFIG, warm_imports=None), ()) == []
    assert warm_recipes(replace(CONFIG, virtual_local_rank=True, local_world_size=4), ()) == []
