"""Stage 11: what the policies were compared at, and what decides their violation rates."""

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from experiments.paper_audit.comparisons import CONTROL, Published
from experiments.paper_audit.finding import (
    Finding,
    Value,
    known,
    listed,
    significant,
    tested,
    tested_words,
)
from experiments.paper_audit.tables import Tables
from orchestrator.calibration.published import PublishedRun, per_window
from orchestrator.calibration.statistics import holm

_ROUNDING = 1e-6  # relative


def steady_findings(tables: Tables, published: Published) -> tuple[Finding, ...]:
    return (
        _sums(tables, published),
        _windows(tables, published),
        _shares(published),
        _per_window(published),
        _random_per_window(published),
        _baselines_per_window(published),
        _closed_loop(published),
    )


def _sums(tables: Tables, published: Published) -> Finding:
    """Means and spreads of the summary table against those of the single runs."""
    apart = 0.0
    for row in tables["stage11_summary"]:
        arm = published.steady.arm(row.text("policy"))
        rates = [100 * run.violation_rate for run in arm.runs]
        pairs = (
            (row.number("slo_violation_pct_mean"), float(np.mean(rates))),
            (row.number("slo_violation_pct_sd"), float(np.std(rates, ddof=1))),
            (row.number("requests_mean"), known(arm.requests)),
        )
        apart = max(apart, *(abs(a - b) / abs(b) for a, b in pairs))
    return Finding(
        subject="stage 11: summary and single runs",
        published="mean and sd of 5 seeds for each policy",
        recomputed=f"largest relative difference {apart:.1e}",
        supports="the tables agree with each other"
        if apart < _ROUNDING
        else "summary and runs CONTRADICT each other: nothing below can be trusted",
        values={"largest_relative_difference": apart},
    )


def _windows(tables: Tables, published: Published) -> Finding:
    values = {arm.label: arm.windows for arm in published.steady.arms}
    claimed = {r.text("policy"): r.number("sync_events_mean") for r in tables["stage11_summary"]}
    spread = _spread([known(v) for v in values.values()])
    return Finding(
        subject="stage 11: merges in a run",
        published=f"sync_events: {listed(claimed, digits=0)}",
        recomputed=f"windows realised (short traces are repeated): {listed(values)}",
        supports=f"exposure differs up to {spread:.1f} times"
        if spread > 1 + _ROUNDING
        else "equal exposure",
        values=values,
    )


def _spread(values: Sequence[float]) -> float:
    return max(values) / min(values)


def _shares(published: Published) -> Finding:
    rate = _column(published, lambda r: r.violation_rate)
    requests = _column(published, lambda r: r.requests)
    inside = _column(published, lambda r: r.requests_in_windows)
    violations = _column(published, lambda r: r.violations)
    share, time = inside / requests, _column(published, lambda r: r.windows)
    factor, apart = rate.sum() / share.sum(), float(np.abs(violations - inside).max())
    of_share, of_time = _correlation(rate, share), _correlation(rate, time)
    return Finding(
        subject="stage 11: what decides the violation rate",
        published="the policy; notes: 0.98 x the share of requests in windows (r = 0.997), and "
        "r = 0.98 with the share of time in windows",
        recomputed=(
            f"{factor:.3f} x the share of requests in windows (r = {of_share:.3f}); r = "
            f"{of_time:.3f} with the time in windows; violations and requests in windows differ by "
            f"at most {apart:.0f} in a run ({len(rate)} runs)"
        ),
        supports="violations count the requests in windows: the rate says how often a policy "
        "merges, not when"
        if min(of_share, of_time) > 0.9
        else "the time in windows does not decide the rate",
        values={
            "runs": len(rate),
            "factor_of_share": float(factor),
            "correlation_with_share_in_windows": of_share,
            "correlation_with_time_in_windows": of_time,
            "largest_difference_requests": apart,
        },
    )


def _column(
    published: Published, get: Callable[[PublishedRun], float | None]
) -> npt.NDArray[np.float64]:
    """One figure of every run.  # [run]"""
    return np.array([known(get(r)) for arm in published.steady.arms for r in arm.runs])


def _correlation(x: npt.NDArray[np.float64], y: npt.NDArray[np.float64]) -> float:
    return float(np.corrcoef(x, y)[0, 1])


def _per_window(published: Published) -> Finding:
    values = {arm.label: known(arm.per_window(arm.violations)) for arm in published.steady.arms}
    low, high = min(values.values()), max(values.values())
    return Finding(
        subject="stage 11: violations for each realised window",
        published="not given; notes: 44 to 49",
        recomputed=f"{low:.1f} to {high:.1f}: {listed(values)}",
        supports=f"for each merge the policies differ by {100 * (high / low - 1):.0f} % at most, "
        "in violations of a run by "
        f"{_spread([known(a.violations) for a in published.steady.arms]):.1f} times",
        values=values,
    )


def _random_per_window(published: Published) -> Finding:
    study = published.steady
    placement = per_window(study, study.arm("wa_diloco"), study.arm(CONTROL))
    return Finding(
        subject="stage 11: wa_diloco against random, for each window",
        published="not given; notes: -6 %, p = 0.12",
        recomputed=tested_words(placement),
        supports="a difference"
        if significant(placement, alpha=study.gate.alpha)
        else f"no difference at alpha {study.gate.alpha:g}",
        values=tested(placement),
    )


def _baselines_per_window(published: Published) -> Finding:
    """The paper's claim of a lower rate, per realised window."""
    study = published.baselines
    wa = study.arm("wa_diloco")
    tests = {c: per_window(study, wa, study.arm(c)) for _, c in study.pairs}
    gains = [known(p.gain.estimate if p.gain is not None else None) for p in tests.values()]
    rates = [1 - wa.violation_rate / study.arm(c).violation_rate for c in tests]
    values: dict[str, Value] = {
        f"{c}: {name}": value for c, p in tests.items() for name, value in tested(p).items()
    }
    adjusted = holm([None if p.flip is None else p.flip.p_value for p in tests.values()])
    shown = [c for c, p in zip(tests, adjusted, strict=True) if p <= study.gate.alpha]
    return Finding(
        subject="stage 11: wa_diloco against fixed and gated policies",
        published=f"violation rate lower by {100 * min(rates):.0f} to {100 * max(rates):.0f} %",
        recomputed="for each window: "
        + "; ".join(f"{c} {tested_words(placement)}" for c, placement in tests.items()),
        supports=(
            f"it merged less often: for each window {100 * min(gains):.0f} to "
            f"{100 * max(gains):.0f} % are left; significant at {study.gate.alpha:g} after Holm: "
            f"{', '.join(shown) or 'none'}"
        ),
        values=values,
    )


def _closed_loop(published: Published) -> Finding:
    means = {arm.label: known(arm.requests) for arm in published.steady.arms}
    low, high = (pick(means, key=lambda a: means[a]) for pick in (min, max))
    r = _correlation(
        _column(published, lambda run: run.violation_rate),
        _column(published, lambda run: run.requests),
    )
    return Finding(
        subject="stage 11: load",
        published="requests of a run",
        recomputed=f"{means[low]:.0f} in {low} to {means[high]:.0f} in {high} (means); r = {r:.2f} "
        "with the violation rate",
        supports="a closed loop: load falls where merges hurt, so no two arms had the same load"
        if r < 0 and means[low] < means[high]
        else "load does not fall where merges hurt",
        values={**means, "correlation": r},
    )
