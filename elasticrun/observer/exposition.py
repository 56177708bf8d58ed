"""Figures as Prometheus reads them, of whoever has some: a job's observer, and an operator."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

try:
    from prometheus_client import (
        CONTENT_TYPE_LATEST,
        CollectorRegistry,
        ProcessCollector,
        core,
        generate_latest,
    )
    from prometheus_client.utils import floatToGoString
except ImportError as error:
    raise ImportError("metrics need prometheus-client: pip install 'elasticrun[metrics]'") from error

from elasticrun.core.durations import Durations
from elasticrun.core.protocol.plain import one_line
from elasticrun.dataclass import dataclass

if TYPE_CHECKING:
    from prometheus_client.core import Metric

PREFIX = "elasticrun_"
_LONGEST = 200  # characters of a label's value


@dataclass(frozen=True, slots=True)
class Gauge:
    """A value for each value of one label; without a label for ""."""

    name: str
    about: str
    values: Mapping[str, float]
    label: str = ""


@dataclass(frozen=True, slots=True)
class Count:
    """The same, of what only grows; of two labels for each pair. Its name ends in ``_total``."""

    name: str
    about: str
    values: Mapping[str, float] | Mapping[tuple[str, str], float]
    label: str | tuple[str, str] = ""


@dataclass(frozen=True, slots=True)
class Histogram:
    """Durations for each value of one label; without a label for ""."""

    name: str
    about: str
    values: Mapping[str, Durations]
    label: str = ""


@dataclass(frozen=True, slots=True)
class Facts:
    """Texts, as labels of a value that is always 1."""

    name: str
    about: str
    values: Mapping[str, str]


Family = Gauge | Count | Histogram | Facts


def exposed(found: Iterable[Family], with_process: bool = False) -> tuple[bytes, str]:
    """The answer to a scrape, and its content type.

    ``with_process``: also what prometheus_client knows of this process, such as its memory.
    """
    registry = CollectorRegistry()
    registry.register(_Collector(tuple(found)))
    if with_process:
        ProcessCollector(registry=registry)
    return generate_latest(registry), CONTENT_TYPE_LATEST


class _Collector:
    """Hands families to a registry, which asks for them when it is rendered."""

    def __init__(self, found: Iterable[Family]) -> None:
        self._found = found

    def describe(self) -> Iterator[Metric]:
        """Nothing: the registry has no other collector whose names could clash."""
        yield from ()

    def collect(self) -> Iterator[Metric]:
        """All of them, as prometheus_client has them."""
        return (_metric(family) for family in self._found)


def _metric(family: Family) -> Metric:
    name, about = PREFIX + family.name, family.about
    match family:
        case Facts():
            info = core.InfoMetricFamily(name.removesuffix("_info"), about)
            info.add_metric([], {key: _clean(text) for key, text in family.values.items()})
            return info
        case Histogram():
            histogram = core.HistogramMetricFamily(name, about, labels=_words(family.label))
            for value, durations in family.values.items():
                bounds = [*map(floatToGoString, durations.bounds), "+Inf"]
                buckets = list(zip(bounds, map(float, durations.cumulative), strict=True))
                histogram.add_metric(_words(value), buckets, durations.seconds)
            return histogram
        case Count() | Gauge():
            kind = core.CounterMetricFamily if isinstance(family, Count) else core.GaugeMetricFamily
            plain: core.CounterMetricFamily | core.GaugeMetricFamily
            plain = kind(name, about, labels=_words(family.label))
            pairs: Iterable[tuple[str | tuple[str, str], float]] = family.values.items()
            for labels, amount in pairs:
                plain.add_metric(_words(labels), amount)
            return plain


def _words(label: str | tuple[str, str]) -> list[str]:
    """The labels, or their values, that these words stand for; none for ""."""
    if isinstance(label, tuple):
        return [*label]
    return [label] if label else []


def _clean(text: str) -> str:
    return one_line(text)[:_LONGEST]
