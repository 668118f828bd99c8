"""How the terminal table and the report write a number: units kept, unknown never shown as 0.

Also the order of arms and the one-line headline, so that no two outputs disagree.
"""

from collections.abc import Iterable, Mapping, Sequence

from orchestrator.calibration.verdict import Judgement, Verdict, VerdictKind
from orchestrator.records import RunMetrics

UNKNOWN = "-"
ARM_ORDER = ("no_sync", "policy", "matched_random", "placebo", "oracle", "aa", "data_parallel")
RATES_TITLE = "Rate effects (no placement claim)"
TIERS = {
    0: "tier 0, replay: evidence of a calibrated replay only",
    1: "tier 1, transfer: the mechanism is real here",
    2: "tier 2, matched: better than matched random in this regime",
    3: "tier 3, held out: and it carries over to unseen traces and seeds",
}
Cell = float | int | str | bool | None


def number(value: float | None, *, digits: int = 2) -> str:
    """Fixed digits; more of them where a small value would read as 0."""
    if value is None:
        return UNKNOWN
    if isinstance(value, int):
        return str(value)
    if value and abs(value) < 0.5 * 10**-digits:
        return f"{value:.2g}"
    return f"{value:.{digits}f}"


def percent(fraction: float | None, *, digits: int = 1) -> str:
    return UNKNOWN if fraction is None else f"{100 * fraction:.{digits}f} %"


def interval(bounds: tuple[float, float] | None, *, as_percent: bool = False) -> str:
    if bounds is None:
        return UNKNOWN
    low, high = bounds
    if as_percent:
        return f"[{100 * low:.1f}, {100 * high:.1f}] %"
    return f"[{number(low)}, {number(high)}]"


def percent_within(value: float | None, bounds: tuple[float, float] | None) -> str:
    """A share with its interval, both in percent."""
    if bounds is None:
        return f"{percent(value)} {UNKNOWN}"
    low, high = bounds
    return f"{percent(value)} [{100 * low:.1f}, {100 * high:.1f}]"


def spread(values: Iterable[float | None], *, digits: int = 2) -> str:
    """Least to largest over seeds: percentiles are never averaged."""
    known = sorted(v for v in values if v is not None)
    if not known:
        return UNKNOWN
    low, high = number(known[0], digits=digits), number(known[-1], digits=digits)
    return low if low == high else f"{low}-{high}"


def cell(key: str, value: Cell) -> str:
    """One value of a generic row, written by what its key says it is."""
    if value is None:
        return UNKNOWN
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str):
        return value
    if any(part in key for part in ("rate", "share", "fraction", "gain", "difference")):
        return percent(value)
    if isinstance(value, int):
        return str(value)
    return number(value, digits=3)


def heading(key: str) -> str:
    """A column heading from a key: ``e2e_p95_s`` reads ``e2e p95 [s]``."""
    words = key.replace("_per_s", " per s")
    if words.endswith("_s"):
        words = words.removesuffix("_s") + " [s]"
    return words.replace("_", " ")


def columns(rows: Sequence[Mapping[str, Cell]]) -> list[str]:
    """All keys of all rows, in order of first appearance."""
    return list(dict.fromkeys(key for row in rows for key in row))


def pooled_rate(metrics: Iterable[RunMetrics]) -> float | None:
    """Violations over requests of the complete runs; None without any."""
    valid = [m for m in metrics if m.status == "complete"]
    requests = sum(m.requests_scheduled for m in valid)
    return sum(m.violations for m in valid) / requests if requests else None


def merges_per_run(metrics: Iterable[RunMetrics]) -> str:
    """Merges of one run: least to largest over an arm's complete runs."""
    return spread((m.merge_count for m in metrics if m.status == "complete"), digits=0)


def by_arm(metrics: Iterable[RunMetrics]) -> dict[str, list[RunMetrics]]:
    """Runs of each arm label by seed; no_sync first, then policies, then controls."""
    groups: dict[str, list[RunMetrics]] = {}
    for m in sorted(metrics, key=lambda m: (ARM_ORDER.index(m.kind), arm_key(m.arm), m.seed)):
        groups.setdefault(m.arm, []).append(m)
    return groups


def arm_key(label: str) -> tuple[str, int]:
    """Sorts no_sync-start before -end and draw 2 before draw 10."""
    head, _, tail = label.rpartition("-d")
    if head and tail.isdigit():
        return head, int(tail)
    return label.replace("-start", "-0").replace("-end", "-1"), 0


def made_with(judgement: Judgement) -> str:
    """Source and engine; anything that is not a real server says so first."""
    engine = f"{judgement.source}, engine={judgement.engine} {judgement.engine_version}".strip()
    return engine if is_real(judgement) else f"SIMULATED: {engine}"


def no_verdict(judgement: Judgement) -> str:
    """Why a judgement holds no verdict."""
    why = "free cadence shows rate effects only" if judgement.rate_effects else "judge: is empty"
    return f"no verdict: the study judges no policy ({why})"


def is_real(judgement: Judgement) -> bool:
    return judgement.source == "live" and judgement.engine == "vllm"


def tier_words(verdict: Verdict) -> str:
    return "no tier reached" if verdict.tier is None else TIERS[verdict.tier]


def headline(verdict: Verdict) -> str:
    """Verdict and its reason in one sentence; the licensed sentence only as far as it goes."""
    claim = "" if verdict.verdict is VerdictKind.PASS else ", no claim"
    reason = verdict.reason.rstrip(". ")
    text = f"{verdict.policy}: {verdict.verdict.value}{claim} ({tier_words(verdict)}): {reason}."
    if verdict.sentence:
        text += f" {verdict.sentence}"
    return text
