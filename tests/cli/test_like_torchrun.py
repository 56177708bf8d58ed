"""The same command lines through torchrun's own parser: the same meaning."""

from __future__ import annotations

import os
import shlex
from typing import Any

import pytest

from elasticrun.cli import options
from elasticrun.cli.arguments import Given, ShowText, read_arguments
from elasticrun.cli.option import Group, Option, Origin
from elasticrun.cli.options import OPTIONS
from elasticrun.errors import UsageError

run = pytest.importorskip("torch.distributed.run", reason="needs torch: pip install 'elasticrun[torch]'")

TORCHRUNS = [
    option for option in OPTIONS if option.origin is Origin.TORCHRUN and option.group is not Group.ABOUT
]
#: What the oldest torch that we work with, 2.4, does not have yet; the last two are new in 2.15.
NEWER = {
    "duplicate_stdout_filters",
    "duplicate_stderr_filters",
    "event_log_handler",
    "numa_binding",
    "shutdown_timeout",
    "signals_to_handle",
    "virtual_local_rank",
    "log_line_prefix_template",
    "print_completion",
}
#: Those that the installed torchrun has as well.
KNOWN = [
    option
    for option in TORCHRUNS
    if any(action.dest == option.name.replace("-", "_") for action in run.get_args_parser()._actions)
]
#: Those that it does not have.
UNKNOWN = [option for option in TORCHRUNS if option not in KNOWN]

LINES = """
train.py
train.py --epochs 3 --nnodes 9 -m -- --standalone
--standalone train.py
--standalone --nproc-per-node=2 train.py --lr 0.1
--standalone --nproc_per_node gpu train.py
--nnodes 2 --nproc-per-node 8 --rdzv-id 7 --rdzv-backend c10d --rdzv-endpoint h:29400 train.py
--nnodes=1:4 --nproc_per_node=auto --max_restarts=3 --rdzv_backend=c10d --rdzv_endpoint=h train.py
--nnodes=2 --node_rank=1 --master_addr=10.0.0.1 --master_port=1234 --nproc_per_node=4 train.py -x
--nnodes=2 --node-rank 0 --master-addr [::1] --master-port 29501 train.py
--max-restarts -1 train.py
--redirect=3 train.py
--redirects 0:1,1:2 --tee 3 train.py
-r3 -t 1 train.py
-r 3 -t3 train.py
-r=3 -t=0:1 train.py
-m package.train --flag
--module package.train -m
-mr 3 package.train
--no-python ./run.sh a b c
--no_python /bin/echo -n --no-python
--run-path /abs/train.py
--log-dir /logs --role trainer --monitor-interval 5 --start-method fork train.py
--log_dir=/logs --rdzv_conf=join_timeout=3,timeout=4 train.py
--event-log-handler console --event_log_handler null train.py
--local-ranks-filter=0,1 --duplicate-stdout-filters a,,b,c --duplicate_stderr_filters=x train.py
--signals-to-handle SIGTERM,SIGUSR1 --shutdown-timeout 7 --virtual-local-rank train.py
--numa-binding node --local-addr 10.0.0.3 --logs-specs mine train.py
--nnodes 2 --nnodes 3 train.py
--e console train.py
--mon 3 --maxr 2 train.py
--nproc 2 train.py
--mon 3 --max-r 2 --st fork train.py
--mon 3 --max-r 2 --star fork train.py
--v train.py
--stand train.py
--shut 3 --sig SIGTERM train.py
--node 3 --nn 4 --nu socket train.py
--t 3 --ro x train.py
--rdzv-e h --rdzv-b c10d --rdzv-i j --rdzv-c a=b train.py
--loc 3 train.py
--local-r 3 --local-a h --log-d d --logs mine train.py
--master 3 train.py
--standalone=1 train.py
--nope train.py
--nnodes
--rdzv-id --standalone train.py
--log-dir -m train.py
--node-rank x train.py
--master-port x train.py
--start-method threads train.py
--numa-binding nope train.py
-- train.py --x
--standalone -- train.py --x -- y
--nproc-per-node 2 - --x
--rdzv-id=--x train.py
--rdzv-id= train.py
train.py ''
"train me.py" "--a b"
--help
-h
--standalone -h train.py
-q train.py
""".strip().splitlines()

ENVIRONMENTS: list[tuple[str, dict[str, str]]] = [
    ("train.py", {"PET_NNODES": "2:3", "PET_NPROC_PER_NODE": "4", "PET_REDIRECTS": "3", "PET_TEE": "1"}),
    ("--nnodes 5 train.py", {"PET_NNODES": "2:3", "PET_RDZV_ENDPOINT": "h:1", "PET_RDZV_BACKEND": "c10d"}),
    ("train.py", {"PET_STANDALONE": "1", "PET_MODULE": "0", "PET_NO_PYTHON": "2"}),
    ("--standalone train.py", {"PET_STANDALONE": "0"}),
    ("train.py", {"PET_STANDALONE": "yes"}),
    ("train.py", {"PET_MAX_RESTARTS": "3", "PET_NODE_RANK": "2"}),
    ("train.py", {"PET_MASTER_PORT": "7", "PET_MASTER_ADDR": "h"}),
    ("train.py", {"PET_MAX_RESTARTS": "x"}),
    ("train.py", {"PET_DUPLICATE_STDOUT_FILTERS": "a,,b,c", "PET_LOCAL_RANKS_FILTER": "1"}),
    ("train.py", {"PET_SHUTDOWN_TIMEOUT": "3", "PET_MONITOR_INTERVAL": "2", "PET_VIRTUAL_LOCAL_RANK": "1"}),
]  # fmt: skip

#: Refused by us at once, by torchrun only after its parser is through.
REFUSED_LATER = ["--max-restarts -1 train.py"]


def by_torchrun(argv: list[str]) -> Any:
    """The namespace, or the word for why there is none."""
    try:
        parser = run.get_args_parser()
    except ValueError:  # a flag in the environment that is no integer
        return "refused"
    if not any("_" in word for word in argv):
        # To argparse of some Python versions --nproc is ambiguous, since --nproc-per-node and its twin
        # both fit. Nobody means that: it is compared by what it would be without the twins.
        for spelling in [name for name in parser._option_string_actions if "_" in name]:
            del parser._option_string_actions[spelling]
    try:
        return parser.parse_args(argv)
    except SystemExit as exit_:
        return "help" if exit_.code == 0 else "refused"


def by_us(argv: list[str], environ: dict[str, str]) -> Given | str:
    try:
        given = read_arguments(argv, environ)
        if not given.command:
            return "refused"
        for option in KNOWN:
            given.find(option)
    except UsageError:
        return "refused"
    except ShowText:
        return "help"
    return given


def same(option: Option[Any], given: Given, theirs: object) -> bool:
    """Whether an option's text is what torchrun's parser made of it."""
    text = given.texts[option.name].text if given.has(option) else option.default_text
    if option.is_flag:
        return given.on(option) is theirs
    if option in (options.DUPLICATE_STDOUT_FILTERS, options.DUPLICATE_STDERR_FILTERS):
        return list(given.find(option) or ()) == theirs
    if option in (options.NODE_RANK, options.MASTER_PORT, options.SHUTDOWN_TIMEOUT) and not given.has(option):
        return theirs in (None, 0, 29500)  # the last is torch 2.4's, which no launcher ever uses by itself
    if isinstance(theirs, int | float):
        return given.find(option) == theirs
    return (text or "").removeprefix("=") == (theirs or option.default_text)


def compare(line: str, environ: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("PET_")]:
        monkeypatch.delenv(name)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    argv = shlex.split(line)
    theirs, ours = by_torchrun(argv), by_us(argv, environ)
    if isinstance(ours, Given) and (newer := [option.name for option in UNKNOWN if ours.has(option)]):
        pytest.skip(f"this torchrun does not have {', '.join(newer)}")
    if isinstance(theirs, str) or isinstance(ours, str):
        assert ours == theirs
        return
    assert ours.command == (theirs.training_script, *theirs.training_script_args)
    differing = [
        (option.name, ours.texts.get(option.name), getattr(theirs, option.name.replace("-", "_")))
        for option in KNOWN
        if not same(option, ours, getattr(theirs, option.name.replace("-", "_")))
    ]
    assert not differing


@pytest.mark.parametrize("line", [line for line in LINES if line not in REFUSED_LATER])
def test_command_lines(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    compare(line, {}, monkeypatch)


@pytest.mark.parametrize(("line", "environ"), ENVIRONMENTS)
def test_environments(line: str, environ: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    compare(line, environ, monkeypatch)


@pytest.mark.parametrize("line", REFUSED_LATER)
def test_refused_by_torchrun_after_parsing(line: str) -> None:
    assert by_us(shlex.split(line), {}) == "refused"


def test_every_option_of_torchrun_is_in_the_table_with_its_default() -> None:
    actions = {action.dest: action for action in run.get_args_parser()._actions}
    theirs = set(actions) - {"training_script", "training_script_args"}
    ours = {option.name.replace("-", "_") for option in OPTIONS if option.origin is Origin.TORCHRUN}
    assert not theirs - ours, "torchrun has options that we do not know: add them to the table"
    assert ours - theirs <= NEWER, "torchrun has none of these"
    for option in KNOWN:
        action = actions[option.name.replace("-", "_")]
        if option.default_text:
            theirs_by_parser = None if option is options.SHUTDOWN_TIMEOUT else str(action.default)
            assert theirs_by_parser in (None, option.default_text), option.name
        assert not option.short or f"-{option.short}" in action.option_strings
