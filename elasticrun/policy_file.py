"""Policies as people write them: what is done about failures, where it differs from the default.

One is the YAML file of ``--policy``, or a dict of Python with the same keys. The table ``SETTINGS`` has every
key that holds a number, with what is allowed; ``examples/policy.yaml`` has every key with its default.
Nothing is guessed: an unknown or repeated key, or a value of another type or out of range, is an error that
names the file or the argument, the key, what was given and what is allowed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from reprlib import Repr
from typing import TYPE_CHECKING, Any, NoReturn

from elasticrun.config import MAX_COUNT, Action, FailureClass, Policy, PolicyRule
from elasticrun.dataclass import dataclass
from elasticrun.errors import UsageError

if TYPE_CHECKING:
    from yaml.nodes import MappingNode

OPTION = "--policy"
#: Bytes that a file may have.
MAX_BYTES = 1024 * 1024
#: Characters of a value that an error quotes.
MAX_SHOWN = 100
#: Errors show little of a nested value: with aliases a short file can stand for more parts than memory has.
_REPR = Repr()
_REPR.maxlevel = 3
_REPR.maxstring = _REPR.maxother = _REPR.maxlong = MAX_BYTES


@dataclass(frozen=True, slots=True)
class Setting:
    """One key of the file that holds a number, as ``backoff.first``."""

    key: str
    field: str  # of Policy
    whole: bool
    low: float
    allowed: str  # completes "give ..."

    def takes(self, value: object) -> bool:
        """Whether a value of the file is allowed; ``true`` is no number, though Python says so."""
        if isinstance(value, bool) or not isinstance(value, int if self.whole else (int, float)):
            return False
        return self.low <= value <= MAX_COUNT  # False for NaN


_COUNT = f"a whole number from 0 to {MAX_COUNT}"
_SECONDS = f"a number of seconds from 0 to {MAX_COUNT}"

SETTINGS: tuple[Setting, ...] = (
    Setting("same_error_rounds", "same_error_rounds", True, 0, f"{_COUNT}, 0 for never"),
    Setting("refill_after", "refill_after", False, 0, f"{_SECONDS}, 0 for never"),
    Setting("backoff.first", "backoff_first", False, 0, f"{_SECONDS}, 0 for no waiting"),
    Setting("backoff.factor", "backoff_factor", False, 1, f"a number from 1 to {MAX_COUNT}"),
    Setting("backoff.longest", "backoff_longest", False, 0, _SECONDS),
    Setting("backoff.fast_failure", "fast_failure", False, 0, f"{_SECONDS}, 0 for never"),
    Setting("backoff.free", "fast_failures_free", True, 0, _COUNT),
)

ACTIONS = "actions"
BACKOFF = "backoff"

_CLASSES = tuple(each.value for each in FailureClass)
_ACTIONS = tuple(each.value for each in Action)


def read_policy(path: str, option: str = OPTION) -> Policy:
    """The policy in a YAML file; keys that it does not have keep their defaults.

    ``option``: what errors call it.

    Raises:
        UsageError: the file cannot be read or is not such a policy.
    """
    words = _Words(f"{option} {path!r}")
    return words.policy(words.load(path))


def policy_of(content: object, name: str) -> Policy:
    """The same of what a file would hold, as Python objects. ``name``: what errors call it.

    Raises:
        UsageError: it is not such a policy.
    """
    return _Words(name).policy(content)


class _Words:
    """One policy, so that every error can name it."""

    def __init__(self, name: str) -> None:
        self._name = name

    def policy(self, content: object) -> Policy:
        top = self._section("", content, _keys_of(""))
        numbers = dict(self._numbers("", top))
        backoff = self._section(BACKOFF, top.get(BACKOFF), _keys_of(BACKOFF))
        numbers |= self._numbers(f"{BACKOFF}.", backoff)
        actions = self._section(ACTIONS, top.get(ACTIONS), _CLASSES)
        policy = Policy(rules=tuple(self._rules(actions)), **numbers)
        if policy.backoff_first > policy.backoff_longest:
            first, longest = policy.backoff_first, policy.backoff_longest
            self._refuse(
                f"backoff.first {first:g} is more than backoff.longest {longest:g}",
                "give a first delay that is no longer than the longest",
            )
        return policy

    def load(self, path: str) -> object:
        import yaml  # only launches with a policy file wait for it

        text = self._text(path)
        try:
            root = yaml.compose(text, Loader=yaml.SafeLoader)
            if isinstance(root, yaml.MappingNode):
                self._refuse_repeated_keys(root)
            return yaml.safe_load(text)
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            where = f" in line {mark.line + 1}" if mark is not None else ""
            self._refuse(f"it is not valid YAML{where}: {error.problem or error.context}", _SHAPE)
        except (yaml.YAMLError, ValueError) as error:  # an impossible character or date
            self._refuse(f"it is not valid YAML: {str(error).splitlines()[0]}", _SHAPE)
        except RecursionError:
            self._refuse("it is nested too deeply", _SHAPE)

    def _text(self, path: str) -> str:
        try:
            with Path(path).open("rb") as file:
                data = file.read(MAX_BYTES + 1)
            if len(data) > MAX_BYTES:
                self._refuse(f"it has more than {MAX_BYTES >> 10} KiB", _SHAPE)
            return data.decode()
        except OSError as error:
            self._refuse(f"it cannot be read ({error.strerror})", "give the path of a YAML file")
        except UnicodeDecodeError:
            self._refuse("it is not text in UTF-8", _SHAPE)

    def _refuse_repeated_keys(self, root: MappingNode) -> None:
        """Refuse a repeated key, of which YAML would take the last without a word."""
        from yaml import MappingNode

        for section in (root, *(value for _, value in root.value if isinstance(value, MappingNode))):
            first: dict[str, int] = {}
            for key, _ in section.value:
                name, line = str(key.value), key.start_mark.line + 1
                if name in first:
                    self._refuse(
                        f"the key {name!r} is in line {first[name]} and again in line {line}", "give it once"
                    )
                first[name] = line

    def _section(self, name: str, value: object, known: Sequence[str]) -> Mapping[str, object]:
        """The keys and values of a part of the file; refuses unknown keys. An empty part has none."""
        allowed = f"give {', '.join(known)}"
        if value is None:
            return {}
        if not isinstance(value, dict):
            what = f"{name} holds" if name else "it holds"
            self._refuse(f"{what} {_shown(value)} instead of keys with values", allowed)
        for key in value:
            if key not in known:
                of = f" of {name}" if name else ""
                self._refuse(f"the key {_shown(key)}{of} is unknown{_hint(key, known)}", allowed)
        return value

    def _numbers(self, prefix: str, section: Mapping[str, object]) -> Iterator[tuple[str, Any]]:
        for key, value in section.items():
            if key in (ACTIONS, BACKOFF):
                continue
            setting = next(each for each in SETTINGS if each.key == prefix + key)
            if not setting.takes(value):
                self._refuse(f"{setting.key} is {_shown(value)}{_if_text(value)}", f"give {setting.allowed}")
            assert isinstance(value, (int, float))
            yield setting.field, int(value) if setting.whole else float(value)

    def _rules(self, actions: Mapping[str, object]) -> Iterator[PolicyRule]:
        """What differs from the default table, in the order of the classes."""
        for failure in FailureClass:
            if failure.value not in actions:
                continue
            word = actions[failure.value]
            if word not in _ACTIONS:
                text = f"{ACTIONS}.{failure.value} is {_shown(word)}{_hint(word, _ACTIONS)}"
                self._refuse(text, f"give {', '.join(_ACTIONS)}")
            action = Action(word)
            if action is not failure.action:
                yield PolicyRule(failure, action)

    def _refuse(self, what: str, advice: str) -> NoReturn:
        raise UsageError(f"{self._name}: {what}; {advice}") from None


def _keys_of(section: str) -> tuple[str, ...]:
    """The keys of the file, or of a part of it that holds numbers."""
    if section:
        return tuple(each.key.partition(".")[2] for each in SETTINGS if each.key.startswith(f"{section}."))
    return (ACTIONS, *(each.key for each in SETTINGS if "." not in each.key), BACKOFF)


_SHAPE = f"give a YAML file with the keys {', '.join(_keys_of(''))}"


def _hint(word: object, known: Sequence[str]) -> str:
    near = get_close_matches(_shown(word).casefold().replace("-", "_"), known, n=1)
    return f" (did you mean {near[0]}?)" if near else ""


def _if_text(value: object) -> str:
    """A hint for a number that YAML reads as text, such as 1e3; else ""."""
    if not isinstance(value, str):
        return ""
    try:
        float(value)
    except ValueError:
        return ""
    return " (text to YAML: write it without quotes, and 1e3 as 1000)"


def _shown(value: object) -> str:
    if value is None or isinstance(value, bool):
        return {None: "nothing", True: "true", False: "false"}[value]
    text = _REPR.repr(value)
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}..."
