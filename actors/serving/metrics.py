"""Serving pressure's raw readings out of a vLLM server's /metrics, whatever their form.

Names have changed between vLLM releases: one that is missing is an error, never a zero.
"""

from collections.abc import Callable
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

from actors.serving.engine import ServerFailed

RUNNING = "vllm:num_requests_running"
WAITING = "vllm:num_requests_waiting"
KV_USAGE = "vllm:kv_cache_usage_perc"
KV_USAGE_OLD = "vllm:gpu_cache_usage_perc"  # its name before 0.10; also in 0..1


class MetricMissing(ServerFailed):
    """A metric that is needed is not in /metrics."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerGauges:
    """State of a server over all its engines."""

    running: int  # requests, summed over engines
    waiting: int
    kv_usage: float  # fraction of the cache, mean over engines


def parse_gauges(text: str, *, server: str = "version unknown") -> ServerGauges:
    """Read the gauges; `server` is the server's version, for the error."""
    values = _series(text)
    return ServerGauges(
        running=round(_pick(values, (RUNNING,), sum, text, server)),
        waiting=round(_pick(values, (WAITING,), sum, text, server)),
        kv_usage=_pick(values, (KV_USAGE, KV_USAGE_OLD), _mean, text, server),
    )


def _series(text: str) -> dict[str, list[float]]:
    """Values of each wanted gauge, one an engine; names without the colon form's punctuation."""
    wanted = {_plain(name) for name in (RUNNING, WAITING, KV_USAGE, KV_USAGE_OLD)}
    values: dict[str, list[float]] = {}
    try:
        for family in text_string_to_metric_families(text):
            if _plain(family.name) in wanted:
                known = values.setdefault(_plain(family.name), [])
                known.extend(sample.value for sample in family.samples)
    except ValueError as error:
        raise MetricMissing(f"/metrics is not in the Prometheus text format: {error}") from error
    return values


def _plain(name: str) -> str:
    """Ray Serve serves vllm_num_requests_running, and Ray's own exporter puts ray_ before it."""
    return name.replace(":", "_").removeprefix("ray_")


def _pick(
    values: dict[str, list[float]],
    names: tuple[str, ...],
    combine: Callable[[list[float]], float],
    text: str,
    server: str,
) -> float:
    for name in names:
        found = values.get(_plain(name))
        if found:
            return combine(found)
    raise MetricMissing(
        f"metric {' or '.join(names)} is not in /metrics of the server ({server}); "
        f"of its kind there are: {_similar(text)}. Use a vLLM release that has it, "
        "or teach actors/serving/metrics.py its new name"
    )


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


def _similar(text: str) -> str:
    names = {line.split("{")[0].split(" ")[0] for line in text.splitlines() if line[:1] != "#"}
    similar = sorted(n for n in names if "num_requests" in n or "cache_usage" in n)
    return ", ".join(similar[:8]) or "none"
