"""Stages 10, 13 and 14, and the published weights: what the tests and the calibration can say."""

from collections.abc import Mapping

from experiments.paper_audit.comparisons import CONTROL, Published
from experiments.paper_audit.finding import Finding, Value, known, listed, tested_words
from experiments.paper_audit.tables import Row, Tables
from orchestrator.calibration.published import PublishedStudy, compare_arms
from policies.config import WaScoreConfig

_DIGIT = 5e-4 * (1 + 1e-9)  # half of the last digit of a published p or percentage
_NOTED_P = 0.021
_MOVED = 0.01  # a ratio that far from 1 is a moved p95


def bursty_findings(tables: Tables, published: Published) -> tuple[Finding, ...]:
    return (
        _contrasts(tables, published.bursty),
        _least_p(published.bursty),
        _per_window(published.bursty),
        _jumps(tables),
        _no_sync(tables),
        _calibration(tables),
        _fabric(tables),
        _weights(tables),
    )


def _contrasts(tables: Tables, study: PublishedStudy) -> Finding:
    """Published p values: could an exact test give them, and do the published pairs?"""
    values: dict[str, Value] = {}
    words = []
    for row in tables["stage13_contrasts"]:
        policy, other = study.arm(row.text("policy")), study.arm(row.text("comparator"))
        p, n = row.number("p_one_sided_less"), row.count("n_seeds")
        nearest = round(p * 2**n)
        fits = abs(p - nearest / 2**n) <= _DIGIT
        mean_pp = 100 * (policy.violation_rate - other.violation_rate)
        placement = compare_arms(study, policy, other)
        name = f"{policy.label} - {other.label}"
        values[f"{name}: mean difference [pp]"] = mean_pp
        values[f"{name}: p x 2^n"] = nearest
        values[f"{name}: pairs"] = placement.n
        values[f"{name}: p of the pairs"] = (
            None if placement.flip is None else placement.flip.p_value
        )
        words.append(
            f"{other.label}: {mean_pp:+.3f} from the means (published "
            f"{row.number('mean_diff_pp'):+.3f}), p {'is' if fits else 'is NOT'} {nearest}/{2**n}; "
            f"{placement.n} of {n} pairs published: {tested_words(placement)}"
        )
    least = min(r.number("p_one_sided_less") for r in tables["stage13_contrasts"])
    given = ", ".join(r.text("p_one_sided_less") for r in tables["stage13_contrasts"])
    return Finding(
        subject="stage 13: contrasts of online_calibrated_wa",
        published=f"one-sided p = {given}",
        recomputed="; ".join(words),
        supports=f"{'a' if least <= study.gate.alpha else 'no'} p at or below "
        f"{study.gate.alpha:g}, as published; the pairs that are given are too few for any test",
        values=values,
    )


def _least_p(study: PublishedStudy) -> Finding:
    """The gate's own test at its best: every seed in the policy's favour."""
    best = study.arm("stage12_calibrated_replay")
    placement = compare_arms(study, best, study.arm(CONTROL))
    below = sum(d < 0 for d in placement.differences)
    least = known(placement.flip.least_p if placement.flip is not None else None)
    return Finding(
        subject="five seeds",
        published=f"notes: p = {_NOTED_P} in the text of the paper (in none of these tables)",
        recomputed=f"{best.label}, below {CONTROL} in {below} of {placement.n} seeds: "
        f"{tested_words(placement)}",
        supports=f"{placement.n} seeds give no p below {least:.5f} in that test: {_NOTED_P} "
        f"{'is not of it' if least > _NOTED_P else 'can be of it'}, alpha {study.gate.alpha:g} is "
        f"{'out of' if least > study.gate.alpha else 'in'} reach",
        values={
            "seeds_below_control": below,
            "n": placement.n,
            "p": None if placement.flip is None else placement.flip.p_value,
            "least_p": least,
        },
    )


def _per_window(study: PublishedStudy) -> Finding:
    values = {arm.label: arm.per_window(arm.requests_in_windows) for arm in study.arms}
    control = known(values[CONTROL])
    apart = {a: 100 * (known(v) / control - 1) for a, v in values.items() if a != CONTROL}
    near = [a for a, change in apart.items() if abs(change) < 10]
    far = [f"{a} ({change:+.0f} %)" for a, change in apart.items() if a not in near]
    return Finding(
        subject="stage 13: requests in windows, for each realised window",
        published="not given; notes: 25.0 to 36.5, only the two calibrated policies off random",
        recomputed=listed(values),
        supports=f"off random by 10 % or more: {', '.join(far) or 'none'}",
        values=values,
    )


def _jumps(tables: Tables) -> Finding:
    values = {r.text("policy"): r.number("p95_ms_sd") for r in tables["stage13_summary"]}
    low, high = min(values.values()), max(values.values())
    return Finding(
        subject="stage 13: p95 as an outcome",
        published="mean p95 of each policy",
        recomputed=f"sd over runs {low:.0f} to {high:.0f} ms: {listed(values, digits=0)}",
        supports="where about 5 % of the requests are in windows p95 jumps between the latencies "
        f"inside and outside (sd apart {high / low:.0f} times); compare shares and counts",
        values=values,
    )


def _no_sync(tables: Tables) -> Finding:
    apart = max(
        abs(r.number("sync_excess_slo_pct_mean") - r.number("slo_violation_pct_mean"))
        for r in tables["stage13_summary"]
    )
    return Finding(
        subject="stage 13: violations in excess of the replay without merges",
        published="a column of its own",
        recomputed=f"differs from the raw share by at most {apart:.3g} percentage points",
        supports="without merges nothing violated" if apart == 0.0 else "some violate without",
        values={"largest_difference_pp": apart},
    )


def _calibration(tables: Tables) -> Finding:
    rows = tables["stage10"]
    moved = [r for r in rows if abs(r.number("sync_p95_ratio") - 1.0) > _MOVED]
    words = [
        f"{r.text('run')} ({r.number('sync_p95_ratio'):.2f}, stress: {r.text('stress_mode')})"
        for r in moved
    ]
    only = all(r.text("stress_mode") == "sync" for r in moved)
    return Finding(
        subject="stage 10: sync windows and p95",
        published=f"p95 inside over outside windows, {len(rows)} runs",
        recomputed=f"off 1 by more than {100 * _MOVED:.0f} % in {len(moved)}: {', '.join(words)}",
        supports="a window shows only where a synthetic load was confined to it; no effect of a "
        "merge was measured"
        if only
        else "windows also show where the load was not confined to them",
        values={r.text("run"): r.number("sync_p95_ratio") for r in rows},
    )


def _fabric(tables: Tables) -> Finding:
    """algbw = payload / time and busbw = algbw x 2 (n - 1) / n, in 10^9 bytes a second."""
    rows, apart = tables["stage14_fabric"], 0.0
    for row in rows:
        n, payload = row.count("world_size"), row.positive("payload_mib_per_rank") * 2**20
        algbw = payload / row.positive("avg_ms") / 1e6  # bytes a ms to 10^9 bytes a s
        pairs = (("algbw_gb_per_s", algbw), ("busbw_gb_per_s", algbw * 2 * (n - 1) / n))
        apart = max(apart, *(abs(row.number(c) - b) / b for c, b in pairs))
    other = list(dict.fromkeys(r.text("run") for r in rows if not _same_job(r)))
    return Finding(
        subject="stage 14: collectives on real nodes",
        published=f"bandwidths of {len(rows)} all-reduces",
        recomputed=f"follow from the times (largest relative difference {apart:.0e}); the manifest "
        f"names another job for {', '.join(other) or 'none'}",
        supports="collectives of that size ran; nothing on when to merge",
        values={"largest_relative_difference": apart, "runs_of_another_job": ", ".join(other)},
    )


def _same_job(row: Row) -> bool:
    return row.text("run").split("-")[0] == row.text("manifest_job_id")


_WEIGHTS: Mapping[str, str] = {
    "threshold": "threshold",
    "w_loss": "loss_weight",
    "w_tok": "token_weight",
    "w_net": "network_pressure_weight",
    "w_srv": "inference_pressure_weight",
    "w_ckpt": "checkpoint_pressure_weight",
    "w_stale": "staleness_penalty",
}


def _weights(tables: Tables) -> Finding:
    ours = WaScoreConfig(kind="wa_score")
    theirs = {name: tables.config("wa_diloco", p).number("value") for name, p in _WEIGHTS.items()}
    other = [name for name, value in theirs.items() if getattr(ours, name) != value]
    return Finding(
        subject="wa_diloco: weights of the score",
        published=listed(theirs, digits=2),
        recomputed=f"defaults of this project's wa_score that differ: {', '.join(other) or 'none'}",
        supports="wa_score has the published weights"
        if not other
        else "wa_score is another policy",
        values=theirs,
    )
