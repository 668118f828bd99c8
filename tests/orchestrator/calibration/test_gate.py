"""The gate is no constant: planted effects are seen, others are not, and every flaw is named."""

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from actors.events import Event, Faulted, HistoryTold, MergeFinished, MergeStarted, Ticked
from orchestrator.calibration.gate import gate_hash, judge
from orchestrator.calibration.verdict import Condition, Judgement, Status, VerdictKind
from orchestrator.config import StudyConfig
from orchestrator.metrics import run_metrics
from orchestrator.record_tables import planned_windows, requests_table
from orchestrator.records import RunMetrics, RunRecord
from orchestrator.workload.config import SliceRule, TokenRange, TraceConfig

Records = list[RunRecord]
Made = tuple[StudyConfig, Records]
Change = Callable[[RunRecord], RunRecord | None]
NAMES = [
    "run_validity",
    "load_match",
    "effect_transfer",
    "exposure_match",
    "matched_random",
    "not_yet_arrived",
    "exact_null",
    "negative_controls",
    "replay",
]


@pytest.fixture(scope="module")
def dodger(make_records: Callable[..., Made]) -> Made:
    """Twelve seeds, an effect, a policy that places merges between bursts."""
    return make_records(seeds=list(range(12)), aa=True)


@pytest.fixture(scope="module")
def pair(make_records: Callable[..., Made]) -> Made:
    """Two seeds of the same."""
    return make_records(seeds=[0, 1], aa=True)


_SEEN: dict[int, tuple[RunRecord, RunMetrics]] = {}  # by id, which lives as long as the entry


def _metrics(record: RunRecord) -> RunMetrics:
    """Each record's metrics once: most tests change one run of many."""
    if id(record) not in _SEEN:
        _SEEN[id(record)] = (record, run_metrics(record))
    return _SEEN[id(record)][1]


def _judge(made: Made) -> Judgement:
    study, records = made
    return judge(study, records, [_metrics(r) for r in records])


def _conditions(judgement: Judgement) -> dict[str, Condition]:
    return {c.name: c for c in judgement.verdicts[0].conditions}


def _with(made: Made, label: str, change: Change, *, seed: int = 0) -> Judgement:
    """Judged after one run was changed (or taken away)."""
    study, records = made
    changed = [change(r) if (r.arm.label, r.seed) == (label, seed) else r for r in records]
    return _judge((study, [r for r in changed if r is not None]))


def _events(change: Callable[[Event], Event | None]) -> Change:
    def apply(record: RunRecord) -> RunRecord:
        events = (change(e) for e in record.events)
        return replace(record, events=tuple(e for e in events if e is not None))

    return apply


def _rows(change: Callable[[dict[str, Any]], None]) -> Change:
    def apply(record: RunRecord) -> RunRecord:
        rows = record.requests.to_pylist()
        for row in rows:
            change(row)
        windows = planned_windows(record.events)
        return replace(record, requests=requests_table(rows, windows=windows, e2e_limit_s=0.15))

    return apply


# The whole gate, on planted worlds


def test_a_planted_effect_and_a_dodging_policy_meet_every_live_condition(dodger: Made) -> None:
    judgement = _judge(dodger)
    conditions = _conditions(judgement)
    assert list(conditions) == NAMES
    assert {n for n, c in conditions.items() if c.status is Status.MET} == set(NAMES) - {"replay"}
    effect = conditions["effect_transfer"]
    assert effect.interval is not None
    assert effect.interval[0] < 4.0 < effect.interval[1] + 0.05
    verdict = judgement.verdicts[0]
    assert verdict.p_value == verdict.least_attainable_p == 2.0**-12
    assert verdict.permutation_p == 2.0**-12
    assert verdict.relative_gain is not None
    assert verdict.relative_gain > 0.5
    assert len(verdict.per_seed) == 12


def test_without_a_replay_nothing_is_claimed_whatever_else_is_met(dodger: Made) -> None:
    judgement = _judge(dodger)
    verdict = judgement.verdicts[0]
    assert verdict.verdict is VerdictKind.INCONCLUSIVE
    assert (verdict.tier, verdict.sentence) == (None, None)
    assert "replay: absent, so tiers 0 and 1 are not reached" in verdict.reason
    assert "replay" in verdict.needed


def test_simulated_and_emulated_parts_are_named_in_reason_and_caveats(dodger: Made) -> None:
    judgement = _judge(dodger)
    for text in (judgement.verdicts[0].reason, " ".join(judgement.caveats)):
        assert "engine=mock" in text
        assert "with emulated merge load, matmul, 88 % of the window" in text
    assert (judgement.engine, judgement.source) == ("mock", "live")


def test_a_random_policy_does_not_meet_matched_random(make_records: Callable[..., Made]) -> None:
    judgement = _judge(make_records(seeds=list(range(7)), placement="random"))
    conditions = _conditions(judgement)
    assert conditions["effect_transfer"].status is Status.MET
    assert conditions["matched_random"].status is Status.NOT_MET
    assert judgement.verdicts[0].verdict is VerdictKind.INCONCLUSIVE
    assert "matched_random is not met" in judgement.verdicts[0].reason
    assert "power" in judgement.verdicts[0].needed


@pytest.mark.slow
def test_without_an_effect_neither_it_nor_matched_random_is_met(
    make_records: Callable[..., Made],
) -> None:
    judgement = _judge(make_records(seeds=list(range(7)), effect=1.0))
    conditions = _conditions(judgement)
    assert conditions["effect_transfer"].status is Status.NOT_MET
    assert conditions["matched_random"].status is Status.NOT_MET
    assert "control never violates" in conditions["matched_random"].why
    assert judgement.verdicts[0].reason.startswith("effect_transfer is not met")
    assert judgement.verdicts[0].relative_gain is None


def test_two_seeds_are_inconclusive_and_say_what_would_be_needed(pair: Made) -> None:
    verdict = _judge(pair).verdicts[0]
    assert verdict.verdict is VerdictKind.INCONCLUSIVE
    assert verdict.least_attainable_p == 0.25
    assert verdict.relative_gain_interval is None
    assert "n >= 7 seeds (n=2 has least attainable p 0.25" in verdict.needed
    conditions = {c.name: c for c in verdict.conditions}
    assert conditions["run_validity"].status is Status.MET
    for name in ("load_match", "effect_transfer", "matched_random", "negative_controls"):
        assert conditions[name].status is Status.NOT_ASSESSABLE
    assert conditions["effect_transfer"].value == pytest.approx(4.0, abs=0.2)
    assert "least attainable p 0.25" in conditions["matched_random"].why


@pytest.mark.slow
def test_draws_are_averaged_and_their_labels_permuted(make_records: Callable[..., Made]) -> None:
    verdict = _judge(make_records(seeds=[0, 1, 2], draws=2)).verdicts[0]
    assert verdict.p_value == 2.0**-3
    assert verdict.permutation_p == pytest.approx(3.0**-3)
    for row in verdict.per_seed:
        draws = [row["draw_0_rate"], row["draw_1_rate"]]
        assert row["control_rate"] == pytest.approx(sum(d for d in draws if d is not None) / 2)


def test_holm_counts_the_whole_family_also_what_was_not_measured(
    make_records: Callable[..., Made],
) -> None:
    policies = {
        name: {"kind": "wa_ewma", "half_life_s": 2.0, "mean_half_life_s": 20.0}
        for name in ("wa_ewma", "unmeasured")
    }
    made = make_records(seeds=[0, 1, 2], policies=policies, judge=["wa_ewma", "unmeasured"])
    first, second = _judge(made).verdicts
    assert first.p_value == 0.125
    assert first.p_holm == 0.25
    assert first.least_attainable_p == 0.25
    assert (second.p_value, second.p_holm, second.n_seeds) == (None, None, 0)
    assert second.verdict is VerdictKind.INCONCLUSIVE
    statuses = {c.name: c.status for c in second.conditions}
    for name in ("effect_transfer", "exposure_match", "matched_random", "not_yet_arrived"):
        assert statuses[name] is Status.NOT_ASSESSABLE


def test_the_judgement_is_strict_json_and_repeatable(dodger: Made, pair: Made) -> None:
    for made in (dodger, pair, (dodger[0], [])):
        judgement = _judge(made)
        assert json.dumps(asdict(judgement), allow_nan=False)
        assert judgement == _judge(made)


def test_the_order_of_the_runs_does_not_matter(pair: Made) -> None:
    study, records = pair
    assert _judge((study, records[::-1])) == _judge(pair)


def test_an_empty_study_is_judged_and_claims_nothing(pair: Made) -> None:
    judgement = _judge((pair[0], []))
    verdict = judgement.verdicts[0]
    assert verdict.reason.startswith("run_validity is not met: no_sync-start seed 0 is missing")
    assert (verdict.p_value, verdict.violation_rate_policy) == (None, None)
    assert judgement.engine == "unknown"
    assert Status.MET not in {c.status for c in verdict.conditions}


# Each flaw is named


def _arm_is(status: str) -> Change:
    return lambda r: replace(r, status=status, why="killed")  # type: ignore[arg-type]


def _overran(event: Event) -> Event:
    return replace(event, overran=True) if isinstance(event, MergeFinished) else event


def _starved(event: Event) -> Event:
    return replace(event, at_s=event.at_s + 1.26) if isinstance(event, MergeFinished) else event


def _unequal(event: Event) -> Event:
    if not isinstance(event, MergeFinished):
        return event
    return replace(event, parts=(event.parts[0], replace(event.parts[1], parameter_hash="x")))


def _blind(event: Event) -> Event:
    if isinstance(event, Ticked) and event.sample.tick < 20:
        return replace(event, sample=replace(event.sample, blind=True, serving=None))
    return event


def _other_engine(record: RunRecord) -> RunRecord:
    return replace(record, provenance={**record.provenance, "engine_version": "mock-2"})


def _other_text(record: RunRecord) -> RunRecord:
    return replace(record, provenance={**record.provenance, "inputs": {"training_text": "d"}})


def _other_config(record: RunRecord) -> RunRecord:
    study = {**record.config["study"], "horizon_s": 61.0}
    return replace(record, config={**record.config, "study": study})


def _contradicts(record: RunRecord) -> RunRecord:
    table = record.requests
    index = table.column_names.index("e2e_s")
    values = [9.0, *table.column("e2e_s").to_pylist()[1:]]
    return replace(record, requests=table.set_column(index, "e2e_s", pa.array(values)))


def _told(record: RunRecord) -> RunRecord:
    told = HistoryTold(event_id=0, first_tick=-1, arrivals=(3,), in_flight=(0,), service_s=1.0)
    return replace(record, events=(told, *record.events))


LOST = Faulted(event_id=9999, at_s=1.0, kind="server_lost", what="exit 137")


@pytest.mark.parametrize(
    ("label", "change", "why"),
    [
        ("wa_ewma", lambda r: None, "wa_ewma seed 0 is missing"),
        ("placebo-of-wa_ewma", lambda r: None, "placebo-of-wa_ewma seed 0 is missing"),
        ("wa_ewma", _arm_is("partial"), "wa_ewma seed 0 is partial: killed"),
        ("no_sync-end", _arm_is("invalid"), "no_sync-end seed 0 is invalid: killed"),
        ("wa_ewma", _events(_overran), "merge_overran: 4 merges"),
        ("wa_ewma", _events(_starved), "a window ended 1.26 s late: the merge load was starved"),
        ("wa_ewma", _events(_unequal), "parameter hashes of the islands differ"),
        (
            "wa_ewma",
            _events(lambda e: None if isinstance(e, MergeFinished) else e),
            "parameter hashes of the islands are unknown",
        ),
        ("wa_ewma", _events(_blind), "telemetry blind at 20 of 60 ticks"),
        ("wa_ewma", lambda r: replace(r, pressure=r.pressure.slice(0, 0)), "telemetry has no rows"),
        ("wa_ewma", lambda r: replace(r, events=(*r.events, LOST)), "server_lost: exit 137"),
        ("wa_ewma", _other_text, "wa_ewma seed 0: another training_text than no_sync-start seed 0"),
        ("wa_ewma", _other_engine, "runs of different engines: live mock mock-1, live mock mock-2"),
        ("wa_ewma", _other_config, "was made with another config than study.json"),
        ("wa_ewma", _told, "wa_ewma seed 0 were told other histories"),
        ("wa_ewma", _contradicts, "rows of requests.parquet state a latency"),
        ("wa_ewma", lambda r: replace(r, requests=r.requests.slice(0, 0)), "no counted request"),
        (
            "wa_ewma",
            _rows(lambda row: row.update(sent_at_s=row["scheduled_at_s"] + 0.1)),
            "client late by 0.1 s at p99",
        ),
        (
            "no_sync-start",
            _rows(lambda row: row.update(done_at_s=row["scheduled_at_s"] + 1.0)),
            "no_sync violates in",
        ),
    ],
)
def test_what_makes_a_run_invalid_is_named(
    pair: Made, label: str, change: Change, why: str
) -> None:
    judgement = _with(pair, label, change)
    condition = _conditions(judgement)["run_validity"]
    assert condition.status is Status.NOT_MET
    assert why in condition.why
    verdict = judgement.verdicts[0]
    assert verdict.verdict is VerdictKind.INCONCLUSIVE
    assert verdict.reason.startswith("run_validity is not met")
    assert "run_validity met" in verdict.needed


def test_merges_after_fewer_steps_than_the_floor_are_a_caveat(pair: Made) -> None:
    """The synthetic islands make a step a second, paced at ten."""
    study, records = pair
    found = [c for c in _judge(pair).caveats if c.startswith("inner steps: a merge came after")]
    assert len(found) == 1
    assert "below floor_steps=50" in found[0]
    assert "acts in ticks" in found[0]
    enough = [replace(r, train=_dense(r.train)) for r in records]
    assert not any("inner steps" in c for c in _judge((study, enough)).caveats)


def _dense(train: pa.Table) -> pa.Table:
    """Ten steps for each one."""
    at_s = train.column_names.index("at_s")
    shifted = [
        train.set_column(
            at_s, "at_s", pa.array([t + k / 10 for t in train.column("at_s").to_pylist()])
        )
        for k in range(10)
    ]
    return pa.concat_tables(shifted)


def test_one_missing_run_of_twelve_seeds_leaves_no_claim(dodger: Made) -> None:
    """Strict: the seeds that are left would pass by themselves."""
    judgement = _with(dodger, "matched_random-of-wa_ewma-d0", lambda r: None, seed=7)
    conditions = _conditions(judgement)
    assert conditions["run_validity"].status is Status.NOT_MET
    for name in ("effect_transfer", "exposure_match", "matched_random", "not_yet_arrived"):
        assert conditions[name].status is Status.NOT_ASSESSABLE
    assert "seed 7" in conditions["matched_random"].why
    verdict = judgement.verdicts[0]
    assert (verdict.n_seeds, verdict.p_holm) == (11, None)
    assert verdict.verdict is VerdictKind.INCONCLUSIVE


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (_rows(lambda row: row.update(prompt_tokens=17)), "request files differ"),
        (
            _rows(lambda row: row.update(prompt_seed=1)),
            "wa_ewma seed 0: requests.parquet does not hold the request file",
        ),
        (
            _rows(
                lambda row: (
                    row.update(
                        sent_at_s=None, outcome="not_sent", done_at_s=None, first_token_at_s=None
                    )
                    if row["request_id"] == 200
                    else None
                )
            ),
            "wa_ewma seed 0: 1 requests were not sent",
        ),
        (
            _rows(lambda row: row.update(completion_tokens=15) if row["request_id"] < 3 else None),
            "wa_ewma seed 0: 3 answers have another length than asked",
        ),
    ],
)
def test_a_load_mismatch_is_named(dodger: Made, change: Change, why: str) -> None:
    judgement = _with(dodger, "wa_ewma", change)
    condition = _conditions(judgement)["load_match"]
    assert condition.status is Status.NOT_MET
    assert why in condition.why


def test_drift_over_a_block_is_not_met(dodger: Made) -> None:
    study, records = dodger

    def worse(row: dict[str, Any]) -> None:
        if row["request_id"] % 50 == 0:
            row["done_at_s"] = row["scheduled_at_s"] + 1.0

    later = [_rows(worse)(r) if r.arm.position == "end" else r for r in records]
    condition = _conditions(_judge((study, [r for r in later if r is not None])))["load_match"]
    assert condition.status is Status.NOT_MET
    assert "not shown equivalent" in condition.why
    assert condition.value is not None
    assert condition.value > 0.01


def _last_gone(event: Event) -> Event | None:
    merge = isinstance(event, MergeStarted | MergeFinished) and event.round == 3
    return None if merge else event


def test_an_exposure_mismatch_is_named(dodger: Made) -> None:
    judgement = _with(dodger, "wa_ewma", _events(_last_gone), seed=4)
    condition = _conditions(judgement)["exposure_match"]
    assert condition.status is Status.NOT_MET
    assert condition.value == 1.0
    assert "wa_ewma seed 4: 3 merges, budget 4" in condition.why
    assert "seed 4: 3 windows in wa_ewma, 4 in matched_random-of-wa_ewma-d0" in condition.why


def test_longer_windows_and_schedules_outside_the_corridor_are_named(pair: Made) -> None:
    def longer(event: Event) -> Event:
        if isinstance(event, MergeStarted):
            return replace(event, planned_end_s=event.planned_end_s + 0.5)
        return event

    def moved(event: Event) -> Event:
        if isinstance(event, MergeStarted) and event.round == 0:
            return replace(event, tick=1)
        return event

    seconds = _conditions(_with(pair, "wa_ewma", _events(longer)))["exposure_match"]
    assert "seed 0: 18.000 merge seconds in wa_ewma, 16.000 in" in seconds.why
    outside = _conditions(_with(pair, "wa_ewma", _events(moved)))["exposure_match"]
    assert outside.status is Status.NOT_MET
    assert "is outside the corridor" in outside.why


def test_a_placebo_that_shows_an_effect_stops_the_claim(dodger: Made) -> None:
    study, records = dodger

    def slow_inside(record: RunRecord) -> RunRecord:
        windows = planned_windows(record.events)

        def slower(row: dict[str, Any]) -> None:
            if any(a <= row["scheduled_at_s"] < b for a, b in windows):
                row["done_at_s"] += 0.12

        changed = _rows(slower)(record)
        assert changed is not None
        return changed

    harmed = [slow_inside(r) if r.arm.kind == "placebo" else r for r in records]
    conditions = _conditions(_judge((study, harmed)))
    assert conditions["effect_transfer"].status is Status.NOT_MET
    assert "placebo is not shown to be neutral" in conditions["effect_transfer"].why
    assert conditions["negative_controls"].status is Status.NOT_MET
    assert "placebo passes" in conditions["negative_controls"].why


def test_an_aa_that_passes_stops_the_claim(dodger: Made) -> None:
    study, records = dodger
    worse = [
        replace(r, requests=other.requests, events=other.events)
        if r.arm.kind == "aa"
        and (other := next(o for o in records if o.arm.draw == 0 and o.seed == r.seed))
        else r
        for r in records
    ]
    condition = _conditions(_judge((study, worse)))["negative_controls"]
    assert condition.status is Status.NOT_MET
    assert "A/A passes" in condition.why


def test_without_an_aa_arm_negative_controls_are_not_assessable(
    make_records: Callable[..., Made],
) -> None:
    verdict = _judge(make_records(seeds=[0, 1])).verdicts[0]
    condition = {c.name: c for c in verdict.conditions}["negative_controls"]
    assert condition.status is Status.NOT_ASSESSABLE
    assert "no A/A arm" in condition.why
    assert "arms: aa" in verdict.needed


@pytest.mark.slow
def test_two_draws_of_matched_random_stand_in_for_an_aa_arm(
    make_records: Callable[..., Made],
) -> None:
    """They differ by chance alone; a draw that dodges like the policy is a difference."""
    study, records = make_records(seeds=list(range(12)), draws=2)
    condition = _conditions(_judge((study, records)))["negative_controls"]
    assert condition.status is Status.MET
    policy = {r.seed: r for r in records if r.arm.kind == "policy"}
    ghosts = [
        replace(r, requests=policy[r.seed].requests, events=policy[r.seed].events)
        if r.arm.draw == 1
        else r
        for r in records
    ]
    condition = _conditions(_judge((study, ghosts)))["negative_controls"]
    assert condition.status is Status.NOT_MET
    assert "A/A passes" in condition.why


@pytest.mark.slow
def test_a_gain_by_dodging_requests_in_flight_alone_does_not_count(dodger: Made) -> None:
    """The control's extra violations are all of requests that were in flight at a window start."""
    study, records = dodger

    def world(record: RunRecord) -> RunRecord:
        starts_s = [a for a, _ in planned_windows(record.events)]
        chosen = record.arm.kind == "matched_random"

        def latency(row: dict[str, Any]) -> None:
            before = any(s - 0.8 <= row["scheduled_at_s"] < s for s in starts_s)
            row["done_at_s"] = row["scheduled_at_s"] + (1.0 if before and chosen else 0.05)

        changed = _rows(latency)(record)
        assert changed is not None
        return changed

    conditions = _conditions(_judge((study, [world(r) for r in records])))
    assert conditions["matched_random"].status is Status.MET
    assert conditions["not_yet_arrived"].status is Status.NOT_MET


def test_gain_on_overlap_is_judged_against_the_exact_law(dodger: Made) -> None:
    verdict = _judge(dodger).verdicts[0]
    condition = {c.name: c for c in verdict.conditions}["exact_null"]
    assert condition.status is Status.MET
    assert condition.value is not None
    assert condition.value < -5.0
    assert condition.n == 12
    assert condition.why.startswith("all: z ")
    assert "not yet arrived: z " in condition.why
    study, records = dodger
    mine, base = (
        next(r for r in records if (r.arm.label, r.seed) == (label, 3))
        for label in ("wa_ewma", "no_sync-end")
    )
    at_s = [t for t in base.requests.column("scheduled_at_s").to_pylist() if t >= study.warmup_s]
    inside = sum(a <= t < b for a, b in planned_windows(mine.events) for t in at_s)
    row = next(r for r in verdict.per_seed if r["seed"] == 3)
    assert row["not_yet_arrived_overlap_policy"] == inside
    assert float(row["overlap_policy"] or 0) >= inside
    assert float(row["not_yet_arrived_overlap_random_mean"] or 0) > inside


def test_random_placement_does_not_meet_the_exact_null(make_records: Callable[..., Made]) -> None:
    study, records = make_records(seeds=list(range(7)), placement="random")
    strict = study.model_copy(update={"gate": study.gate.model_copy(update={"alpha": 0.01})})
    condition = _conditions(_judge((strict, records)))["exact_null"]
    assert condition.status is Status.NOT_MET
    assert condition.value is not None
    assert abs(condition.value) < 3.0


@pytest.mark.slow
def test_overlap_without_traffic_of_every_seed_is_unknown(dodger: Made) -> None:
    study, records = dodger
    for label in ("no_sync", "wa_ewma"):
        gone = [r for r in records if not (r.arm.label.startswith(label) and r.seed == 5)]
        condition = _conditions(_judge((study, gone)))["exact_null"]
        assert condition.status is Status.NOT_ASSESSABLE
        assert f"seed 5: no complete {label} run" in condition.why


# What would make evidence of nothing


def test_a_study_without_a_no_sync_arm_is_refused(make_records: Callable[..., Made]) -> None:
    arms = [
        {"kind": "policy", "policy": "wa_ewma"},
        {"kind": "matched_random", "of": "wa_ewma", "draws": 1},
        {"kind": "placebo", "of": "wa_ewma"},
    ]
    judgement = _judge(make_records(seeds=[0, 1], arms=arms))
    conditions = _conditions(judgement)
    assert "no complete no_sync run: the load without merges" in conditions["run_validity"].why
    assert "seed 0: effect unknown: no complete no_sync run" in conditions["effect_transfer"].why
    for name in ("load_match", "effect_transfer", "exact_null", "negative_controls"):
        assert conditions[name].status is Status.NOT_ASSESSABLE
    assert judgement.verdicts[0].verdict is VerdictKind.INCONCLUSIVE


def test_a_lighter_request_file_is_named_with_its_counts(dodger: Made) -> None:
    def lighter(record: RunRecord) -> RunRecord:
        return replace(record, requests=record.requests.slice(0, int(0.92 * n)))

    n = next(r for r in dodger[1] if r.seed == 0).requests.num_rows
    judgement = _with(dodger, "wa_ewma", lighter)
    condition = _conditions(judgement)["load_match"]
    assert condition.status is Status.NOT_MET
    assert "wa_ewma seed 0: requests.parquet does not hold the request file" in condition.why
    assert f"against wa_ewma ({int(0.92 * n)} requests)" in condition.why
    assert f"({n} requests)" in condition.why


def test_a_control_with_one_merge_fewer_is_named(dodger: Made) -> None:
    label = "matched_random-of-wa_ewma-d0"
    condition = _conditions(_with(dodger, label, _events(_last_gone), seed=4))["exposure_match"]
    assert condition.status is Status.NOT_MET
    assert f"{label} seed 4: 3 merges, budget 4" in condition.why
    assert f"seed 4: 4 windows in wa_ewma, 3 in {label}" in condition.why


@pytest.mark.slow
def test_seeds_enough_for_one_policy_are_too_few_for_a_family(
    make_records: Callable[..., Made],
) -> None:
    policies = {
        name: {"kind": "wa_ewma", "half_life_s": 2.0, "mean_half_life_s": 20.0}
        for name in ("wa_ewma", "other")
    }
    made = make_records(seeds=list(range(5)), policies=policies)
    assert _conditions(_judge(made))["matched_random"].status is Status.MET
    study, records = made
    both = study.model_copy(update={"judge": ("wa_ewma", "other")})
    condition = _conditions(_judge((both, records)))["matched_random"]
    assert condition.status is Status.NOT_ASSESSABLE
    assert "n=5: least attainable p 0.0625 after Holm over 2" in condition.why


def test_a_seed_measured_once_and_counted_twice_is_refused(dodger: Made) -> None:
    study, records = dodger
    once = [r for r in records if r.seed != 1]
    twice = [*once, *(replace(r, seed=1) for r in records if r.seed == 0)]
    judgement = _judge((study, twice))
    conditions = _conditions(judgement)
    assert (
        "no_sync-start seed 1 is a copy of no_sync-start seed 0" in conditions["run_validity"].why
    )
    assert (
        "seeds 0, 1 have the same arrivals: they are not independent"
        in conditions["load_match"].why
    )
    assert conditions["exact_null"].status is Status.NOT_ASSESSABLE
    assert "same cost at every tick" in conditions["exact_null"].why
    assert judgement.verdicts[0].verdict is VerdictKind.INCONCLUSIVE


@pytest.mark.slow
def test_seeds_with_one_request_file_are_not_independent_even_if_measured_anew(
    dodger: Made,
) -> None:
    study, records = dodger
    again = []
    for r in records:
        if r.seed == 1:
            base = next(o for o in records if o.arm.label == r.arm.label and o.seed == 0)
            slower = _rows(lambda row: row.update(done_at_s=row["done_at_s"] + 1e-4))(base)
            assert slower is not None
            r = replace(slower, seed=1, events=r.events)
        again.append(r)
    conditions = _conditions(_judge((study, again)))
    assert "copy" not in conditions["run_validity"].why
    assert conditions["load_match"].status is Status.NOT_MET
    assert "seeds 0, 1 have the same arrivals" in conditions["load_match"].why


@pytest.mark.parametrize(
    ("name", "value"), [("violation_rate", float("nan")), ("e2e_p95_s", float("inf"))]
)
def test_a_figure_that_is_no_number_is_refused(pair: Made, name: str, value: float) -> None:
    study, records = pair
    metrics = [_metrics(r) for r in records]
    metrics[2] = replace(metrics[2], **{name: value})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=f"wa_ewma seed 0: {name}={value} is no finite number"):
        judge(study, records, metrics)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf"), -3.0])
@pytest.mark.parametrize("columns", [("e2e_s",), ("done_at_s",), ("done_at_s", "e2e_s")])
def test_a_latency_that_is_no_number_never_makes_a_run_look_better(
    pair: Made, columns: tuple[str, ...], value: float
) -> None:
    """Rows that violate are overwritten: the run must neither improve nor stay valid."""

    def overwritten(record: RunRecord) -> RunRecord:
        table = record.requests
        late = [e is not None and e > 0.15 for e in table.column("e2e_s").to_pylist()]
        for name in columns:
            old = table.column(name).to_pylist()
            new = [value if bad else v for bad, v in zip(late, old, strict=True)]
            index = table.column_names.index(name)
            table = table.set_column(index, table.schema.field(name), pa.array(new, pa.float64()))
        return replace(record, requests=table)

    before = _judge(pair).verdicts[0].violation_rate_policy
    assert before is not None
    assert before > 0.0
    record = next(r for r in pair[1] if (r.arm.label, r.seed) == ("wa_ewma", 0))
    metrics = run_metrics(overwritten(record))
    assert metrics.violations >= run_metrics(record).violations
    try:
        judgement = _with(pair, "wa_ewma", overwritten)
    except ValueError as refused:
        assert "is no finite number" in str(refused)  # noqa: PT017
        return
    assert _conditions(judgement)["run_validity"].status is Status.NOT_MET
    assert judgement.verdicts[0].verdict is VerdictKind.INCONCLUSIVE


# What stands around the verdicts


def test_effects_hold_the_ratio_of_each_seed_with_and_without_the_emulated_part(
    make_records: Callable[..., Made],
) -> None:
    long, short = (
        _judge(make_records(seeds=[0, 1], draws=2, real_s=real_s)).effects for real_s in (3.5, 0.2)
    )
    for row in long:
        assert row["effect_ratio"] == pytest.approx(4.0, abs=0.3)
        assert row["real_part_ratio"] == pytest.approx(4.0, abs=0.5)
        assert row["placebo_ratio"] == pytest.approx(1.0, abs=0.1)
    for row in short:
        assert row["real_part_ratio"] is None
        assert "fewer than 20" in str(row["real_part_why"])
    assert [row["seed"] for row in long] == [0, 1]


def test_arm_rows_pool_requests_and_never_average_percentiles(pair: Made) -> None:
    judgement = _judge(pair)
    rows = {row["arm"]: row for row in judgement.arms}
    metrics = [run_metrics(r) for r in pair[1] if r.arm.label == "wa_ewma"]
    row = rows["wa_ewma"]
    assert row["requests"] == sum(m.requests_scheduled for m in metrics)
    assert row["violation_rate"] == sum(m.violations for m in metrics) / int(row["requests"])
    values = [m.e2e_p95_s for m in metrics if m.e2e_p95_s is not None]
    assert min(values) <= float(row["e2e_p95_s"]) <= max(values)  # type: ignore[arg-type]
    assert rows["placebo-of-wa_ewma"]["kind"] == "placebo (control)"


def test_the_oracle_is_shown_as_a_control_and_never_judged(
    make_records: Callable[..., Made],
) -> None:
    arms = [
        {"kind": "no_sync"},
        {"kind": "policy", "policy": "wa_ewma"},
        {"kind": "matched_random", "of": "wa_ewma"},
        {"kind": "oracle", "of": "wa_ewma"},
    ]
    study, records = make_records(seeds=[0], arms=arms)
    judgement = _judge((study, records))
    rows = {row["arm"]: row for row in judgement.arms}
    assert rows["oracle-of-wa_ewma"]["kind"] == "oracle (control)"
    assert int(rows["oracle-of-wa_ewma"]["violations"]) <= min(  # type: ignore[arg-type]
        int(rows[name]["violations"])  # type: ignore[arg-type]
        for name in ("wa_ewma", "matched_random-of-wa_ewma-d0")
    )
    assert [v.policy for v in judgement.verdicts] == ["wa_ewma"]


def test_a_gate_changed_after_the_runs_is_a_caveat(pair: Made) -> None:
    study, records = pair
    assert not any("changed after" in c for c in _judge(pair).caveats)
    lax = study.model_copy(update={"gate": study.gate.model_copy(update={"alpha": 0.5})})
    judgement = _judge((lax, records))
    assert any("changed after" in c and "not fixed beforehand" in c for c in judgement.caveats)
    assert judgement.gate_hash == gate_hash(lax) != gate_hash(study)
    validity = _conditions(judgement)["run_validity"]
    assert validity.status is Status.NOT_MET
    assert "they are to be fixed beforehand" in validity.why


def test_a_wider_corridor_written_into_a_run_does_not_make_its_schedule_feasible(
    pair: Made,
) -> None:
    def widen(record: RunRecord) -> RunRecord:
        corridor = {**record.config["corridor"], "floor_ticks": 0, "ceiling_ticks": 60}
        return replace(record, config={**record.config, "corridor": corridor})

    conditions = _conditions(_with(pair, "wa_ewma", widen))
    assert conditions["exposure_match"].status is Status.NOT_MET
    assert "was it edited?" in conditions["exposure_match"].why
    assert conditions["exact_null"].status is Status.NOT_ASSESSABLE


def test_a_late_client_shows_in_the_times_whatever_lateness_says(pair: Made) -> None:
    study, records = pair

    def late(record: RunRecord) -> RunRecord:
        table = record.requests
        sent = pa.array([t + 0.14 for t in table.column("sent_at_s").to_pylist()])
        place = table.schema.get_field_index("sent_at_s")
        return replace(record, requests=table.set_column(place, table.schema.field(place), sent))

    changed = [late(r) if r.arm.label == "wa_ewma" else r for r in records]
    validity = _conditions(_judge((study, changed)))["run_validity"]
    assert validity.status is Status.NOT_MET
    assert "record_contradicts" in validity.why
    assert "client late by 0.14" in validity.why


def test_seeds_cut_from_one_trace_speak_of_the_trace_alone(pair: Made) -> None:
    study, records = pair
    assert not any("trace" in c for c in _judge(pair).caveats)
    tokens = TokenRange(low=1, high=64)
    load = TraceConfig(
        kind="trace",
        path="some/code.csv",
        time_scale=2.0,
        slice=SliceRule(min_requests=1, max_requests=1000, max_burst_requests=100),
        token_scale=1.0,
        prompt_tokens_clip=tokens,
        output_tokens_clip=tokens,
    )
    caveats = _judge((study.model_copy(update={"load": load}), records)).caveats
    assert (
        "the 2 seeds are disjoint windows of 120 s of one trace, code.csv; so few speak of this "
        "trace, not of the regime"
    ) in caveats


def test_runs_outside_the_study_are_named_and_not_judged(pair: Made) -> None:
    study, records = pair
    first = study.model_copy(update={"seeds": (0,)})
    judgement = _judge((first, records))
    assert judgement.verdicts[0].n_seeds == 1
    assert any("wa_ewma seed 1" in c for c in judgement.caveats)


def test_two_runs_of_one_arm_and_seed_are_refused(pair: Made) -> None:
    study, records = pair
    double = replace(records[0], path=Path("copy"))
    with pytest.raises(ValueError, match="measured twice"):
        _judge((study, [*records, double]))
    with pytest.raises(ValueError, match="do not match"):
        judge(study, records, [run_metrics(records[0])])
