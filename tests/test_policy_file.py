"""Policy files: what they mean, and what is said of those that mean nothing."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest
import yaml

from elasticrun.config import Action, FailureClass, Policy, PolicyRule
from elasticrun.core.recovery.policy import action_for
from elasticrun.errors import ExitCode, UsageError
from elasticrun.policy_file import MAX_BYTES, SETTINGS, Setting, policy_of, read_policy

EXAMPLE = Path(__file__).parent.parent / "examples" / "policy.yaml"
KEYS = "actions, same_error_rounds, refill_after, backoff"
SHAPE = f"give a YAML file with the keys {KEYS}"
CLASSES = ", ".join(each.value for each in FailureClass)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "policy.yaml"


def parsed(path: Path, text: str) -> Policy:
    path.write_text(text)
    return read_policy(str(path))


def refusal(path: Path, content: str | bytes) -> str:
    """What is said of this file, without its name."""
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(UsageError) as caught:
        read_policy(str(path))
    sentence = str(caught.value)
    assert caught.value.exit_code is ExitCode.USAGE
    assert "\n" not in sentence
    name, _, rest = sentence.partition(": ")
    assert name == f"--policy {str(path)!r}"
    return rest


def test_the_example_says_the_defaults() -> None:
    assert read_policy(str(EXAMPLE)) == Policy()


def test_the_example_has_every_key() -> None:
    content = yaml.safe_load(EXAMPLE.read_text())
    assert content["actions"] == {each.value: each.action.value for each in FailureClass}
    flat = {key: value for key, value in content.items() if not isinstance(value, dict)}
    flat |= {f"backoff.{key}": value for key, value in content["backoff"].items()}
    assert flat.keys() == {setting.key for setting in SETTINGS}
    assert {setting.field for setting in SETTINGS} == {field.name for field in fields(Policy)} - {"rules"}


@pytest.mark.parametrize("text", ["", "# nothing\n", "{}", "---\n", "actions:\nbackoff: {}\n"])
def test_what_is_left_out_keeps_its_default(path: Path, text: str) -> None:
    assert parsed(path, text) == Policy()


def test_every_key(path: Path) -> None:
    policy = parsed(
        path,
        "actions: {hardware: recheck, user_error: give_up}\n"
        "same_error_rounds: 5\nrefill_after: 3600\n"
        "backoff: {first: 0.5, factor: 3, longest: 90, fast_failure: 20.5, free: 0}\n",
    )
    assert policy == Policy(
        rules=(
            PolicyRule(FailureClass.USER_ERROR, Action.GIVE_UP),
            PolicyRule(FailureClass.HARDWARE, Action.RECHECK),
        ),
        same_error_rounds=5,
        refill_after=3600.0,
        backoff_first=0.5,
        backoff_factor=3.0,
        backoff_longest=90.0,
        fast_failure=20.5,
        fast_failures_free=0,
    )
    assert isinstance(policy.refill_after, float)  # as the journal has it
    assert action_for(policy, FailureClass.USER_ERROR) is Action.GIVE_UP


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("actoins: {}", f"the key 'actoins' is unknown (did you mean actions?); give {KEYS}"),
        (
            "same-error-rounds: 3",
            f"the key 'same-error-rounds' is unknown (did you mean same_error_rounds?); give {KEYS}",
        ),
        ("zzz: 3", f"the key 'zzz' is unknown; give {KEYS}"),
        ("7: 3", f"the key 7 is unknown; give {KEYS}"),
        (
            "backoff: {frist: 3}",
            "the key 'frist' of backoff is unknown (did you mean first?); "
            "give first, factor, longest, fast_failure, free",
        ),
        (
            "actions: {user-error: restart}",
            f"the key 'user-error' of actions is unknown (did you mean user_error?); give {CLASSES}",
        ),
        (
            "actions: {hardware: Leave}",
            "actions.hardware is 'Leave' (did you mean leave?); give restart, recheck, leave, give_up",
        ),
        ("actions: {hang: }", "actions.hang is nothing; give restart, recheck, leave, give_up"),
        (
            "actions: {hang: [leave]}",
            "actions.hang is ['leave'] (did you mean leave?); give restart, recheck, leave, give_up",
        ),
        ("actions: restart", f"actions holds 'restart' instead of keys with values; give {CLASSES}"),
        ("- actions", f"it holds ['actions'] instead of keys with values; give {KEYS}"),
        (
            "backoff: 3",
            "backoff holds 3 instead of keys with values; give first, factor, longest, fast_failure, free",
        ),
        (
            "same_error_rounds: -1",
            "same_error_rounds is -1; give a whole number from 0 to 2147483647, 0 for never",
        ),
        (
            "refill_after: soon",
            "refill_after is 'soon'; give a number of seconds from 0 to 2147483647, 0 for never",
        ),
        (
            "refill_after: 1e3",
            "refill_after is '1e3' (text to YAML: write it without quotes, and 1e3 as 1000); "
            "give a number of seconds from 0 to 2147483647, 0 for never",
        ),
        (
            "same_error_rounds: yes",
            "same_error_rounds is true; give a whole number from 0 to 2147483647, 0 for never",
        ),
        ("backoff: {factor: 0.5}", "backoff.factor is 0.5; give a number from 1 to 2147483647"),
        (
            "backoff: {first: 5, longest: 2}",
            "backoff.first 5 is more than backoff.longest 2; "
            "give a first delay that is no longer than the longest",
        ),
        (
            "same_error_rounds: 1\nbackoff: {}\nsame_error_rounds: 2",
            "the key 'same_error_rounds' is in line 1 and again in line 3; give it once",
        ),
        (
            "actions:\n  hang: leave\n  hang: restart",
            "the key 'hang' is in line 2 and again in line 3; give it once",
        ),
        (
            "actions: {hang: leave",
            f"it is not valid YAML in line 1: expected ',' or '}}', but got '<stream end>'; {SHAPE}",
        ),
        ("a: 1\nb: 2: 3", f"it is not valid YAML in line 2: mapping values are not allowed here; {SHAPE}"),
        ("---\na: 1\n---\nb: 2", f"it is not valid YAML in line 3: but found another document; {SHAPE}"),
        ("!!python/object:os.system {}", None),
        ("{[1]: 2}", None),
        ("refill_after: 2020-13-45", None),
        ("a: \x07", None),
        (b"\xff\xfe\xff", f"it is not text in UTF-8; {SHAPE}"),
        (b"#" * (MAX_BYTES + 1), f"it has more than 1024 KiB; {SHAPE}"),
        ("[" * 100_000, None),
        ("actions: &a {hang: *a}", None),
    ],
)
def test_files_that_mean_nothing(path: Path, text: str | bytes, sentence: str | None) -> None:
    said = refusal(path, text)
    if sentence is not None:
        assert said == sentence


@pytest.mark.parametrize("value", ["true", "-1", "1e99", ".inf", "-.inf", ".nan", "'3'", "[3]", "", "1_e"])
@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.key)
def test_numbers_that_are_none(path: Path, setting: Setting, value: str) -> None:
    key = setting.key
    section, _, name = key.rpartition(".")
    text = f"{section}: {{{name}: {value}}}" if section else f"{name}: {value}"
    assert refusal(path, text).startswith(f"{key} is ")


@pytest.mark.parametrize("key", ["same_error_rounds", "backoff.free"])
def test_half_a_round_is_none(path: Path, key: str) -> None:
    section, _, name = key.rpartition(".")
    text = f"{section}: {{{name}: 1.5}}" if section else f"{name}: 1.5"
    assert refusal(path, text).startswith(f"{key} is 1.5; give a whole number")


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(
        UsageError, match=r"it cannot be read \(No such file or directory\); give the path of"
    ):
        read_policy(str(tmp_path / "missing.yaml"))
    with pytest.raises(UsageError, match=r"it cannot be read \(Is a directory\)"):
        read_policy(str(tmp_path))


@pytest.mark.parametrize("key", ["refill_after", "actions: {hang", "actions", "other"])
def test_a_value_that_aliases_make_endless_is_refused_at_once(path: Path, key: str) -> None:
    levels = [f"  - &a{number} [{', '.join([f'*a{number - 1}'] * 9)}]" for number in range(1, 40)]
    text = "\n".join(["same_error_rounds:", "  - &a0 x", *levels])
    assert len(refusal(path, text)) < 300
    closing = "}" if "{" in key else ""
    assert len(refusal(path, text.replace("same_error_rounds", "backoff") + f"\n{key}: *a39{closing}")) < 600


def test_a_long_value_is_cut(path: Path) -> None:
    assert len(refusal(path, f"refill_after: {'x' * 5000}")) < 300


def test_a_policy_may_be_given_from_python() -> None:
    found = policy_of({"actions": {"network": "leave"}, "backoff": {"first": 2}}, "policy")
    assert found == Policy(rules=(PolicyRule(FailureClass.NETWORK, Action.LEAVE),), backoff_first=2.0)
    with pytest.raises(UsageError, match=r"^policy: actions.network is 'go'; give restart, recheck"):
        policy_of({"actions": {"network": "go"}}, "policy")
    with pytest.raises(UsageError, match=r"^policy: it holds 3 instead of keys with values; give actions"):
        policy_of(3, "policy")


def test_errors_name_the_file_as_its_caller_does(path: Path) -> None:
    path.write_text("x: 1")
    with pytest.raises(UsageError, match=r"^policy '.*': the key 'x' is unknown"):
        read_policy(str(path), "policy")
