"""What a sweep comes to: the table of settings, the best on the tuning blocks, its verdict.

Two corrections, kept apart. The gain on the tuning blocks is the best of N settings: its p counts
N times (Bonferroni). The verdict stands on blocks that took no part in the search, so the search
needs no correction there: its family is the study's ``judge`` list, by Holm, as in every gate.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from orchestrator.calibration.placement import Placement, measure
from orchestrator.calibration.verdict import Judgement, Verdict, VerdictKind
from orchestrator.config import StudyConfig
from orchestrator.sweep.blocks import has_traces
from orchestrator.sweep.config import SpaceConfig, Value
from orchestrator.sweep.figures import BlockFigures, by_seed
from orchestrator.sweep.ledger import Ledger
from orchestrator.sweep.progress import State, Tried, best_of
from orchestrator.sweep.windows import CHECKED

SOURCE, ENGINE = "replay", "model"


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingRow:
    """One setting over the tuning blocks that it was played on; None is unknown."""

    number: int  # from 1, in the order of asking
    setting: str
    state: str
    values: dict[str, Value]
    seeds: int
    blocks: int
    gain: float | None  # (matched random - policy) / matched random
    gain_interval: tuple[float, float] | None  # of this setting alone, whatever others did
    violation_rate_policy: float | None  # mean over seeds
    violation_rate_control: float | None
    merges: float | None  # mean over blocks
    why: str | None  # of a refusal or a failure


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuned:
    """The best setting on the blocks that it was chosen on."""

    setting: str
    number: int
    values: dict[str, Value]
    seeds: int
    draws: int  # of matched random, a seed
    gain: float
    gain_interval: tuple[float, float] | None
    p_value: float | None  # sign flips over seeds, of this setting alone
    settings_tried: int
    p_of_the_best: float | None  # min(1, settings_tried * p_value)


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOut:
    """The gate on one load of the judging blocks."""

    load: int
    verdict: str
    reason: str
    tier: int | None
    seeds: int
    draws: int  # of matched random, a seed
    gain: float | None
    gain_interval: tuple[float, float] | None
    p_value: float | None
    p_holm: float | None
    family: int  # tests that Holm counts: the study's judge list


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepResult:
    """result.json; every number follows from results.jsonl and the folders under judging/."""

    study: str
    policy: str
    regime: str
    search: str
    search_seed: int
    settings: tuple[SettingRow, ...]
    left_behind: int  # played once; the search, told of a failure, went another way since
    tuned: Tuned | None
    held_out: tuple[HeldOut, ...]
    verdict: str  # PASS only where every load of the judging blocks passes
    winners_curse: float | None  # gain on the tuning blocks minus gain on the judging blocks
    corrections: tuple[str, ...]
    source: str = SOURCE
    engine: str = ENGINE

    @property
    def counts(self) -> dict[str, int]:
        return {s.value: sum(r.state == s.value for r in self.settings) for s in State}


def setting_rows(study: StudyConfig, tried: Iterable[Tried]) -> tuple[SettingRow, ...]:
    return tuple(_row(study, t) for t in tried)


def _row(study: StudyConfig, tried: Tried) -> SettingRow:
    rows = list(tried.rows.values())
    placed = placement(study, rows, name=tried.setting.setting) if rows else None
    complete = tried.state is State.COMPLETE
    bounds = placed.gain.finite if placed is not None and placed.gain and complete else None
    return SettingRow(
        number=tried.number + 1,
        setting=tried.setting.setting,
        state=tried.state.value,
        values=tried.setting.values,
        seeds=len({r.seed for r in rows}),
        blocks=len(rows),
        gain=tried.gain,
        gain_interval=bounds,
        violation_rate_policy=None if placed is None else _mean(placed.rates),
        violation_rate_control=None if placed is None else _mean(placed.controls),
        merges=_mean([float(r.merge_count) for r in rows]),
        why=tried.setting.refused or tried.why,
    )


def placement(study: StudyConfig, rows: Sequence[BlockFigures], *, name: str) -> Placement | None:
    """The gate's own numbers of some blocks, the seed as the unit; None when a rate is unknown."""
    seeds = by_seed(rows)
    if not seeds:
        return None
    return measure(
        [rate for rate, _ in seeds.values()],
        [draws for _, draws in seeds.values()],
        gate=study.gate,
        seeds=list(seeds),
        name=f"sweep {name}",
    )


def _mean(values: Iterable[float]) -> float | None:
    known = list(values)
    return sum(known) / len(known) if known else None


def tuned_of(study: StudyConfig, tried: Sequence[Tried], *, ledger: Ledger) -> Tuned | None:
    """The best setting; None when none was played on every block with a known gain.

    Every setting with a block in the ledger counts as a try, one whose worker failed too.
    """
    best = best_of(tried)
    if best is None or best.gain is None:
        return None
    placed = placement(study, list(best.rows.values()), name=best.setting.setting)
    assert placed is not None
    played = len(ledger.settings)
    p = None if placed.flip is None else placed.flip.p_value
    return Tuned(
        setting=best.setting.setting,
        number=best.number + 1,
        values=best.setting.values,
        seeds=len(placed.seeds),
        draws=min(len(row.control_rates) for row in best.rows.values()),
        gain=best.gain,
        gain_interval=None if placed.gain is None else placed.gain.finite,
        p_value=p,
        settings_tried=played,
        p_of_the_best=None if p is None else min(1.0, played * p),
    )


def held_out_of(policy: str, judgements: Sequence[Judgement], *, draws: int) -> tuple[HeldOut, ...]:
    """The tuned policy's verdict in each judgement."""
    return tuple(
        _held_out(
            load,
            judgement,
            next(v for v in judgement.verdicts if v.policy == policy),
            draws=draws,
        )
        for load, judgement in enumerate(judgements)
    )


def _held_out(load: int, judgement: Judgement, verdict: Verdict, *, draws: int) -> HeldOut:
    return HeldOut(
        load=load,
        verdict=verdict.verdict.value,
        reason=verdict.reason,
        tier=verdict.tier,
        seeds=verdict.n_seeds,
        draws=draws,
        gain=verdict.relative_gain,
        gain_interval=verdict.relative_gain_interval,
        p_value=verdict.p_value,
        p_holm=verdict.p_holm,
        family=len(judgement.verdicts),
    )


def sweep_result(
    study: StudyConfig,
    space: SpaceConfig,
    tried: Sequence[Tried],
    judgements: Sequence[Judgement] = (),
    *,
    ledger: Ledger,
) -> SweepResult:
    tuned = tuned_of(study, tried, ledger=ledger)
    held_out = held_out_of(space.policy, judgements, draws=space.judging.draws)
    gains = [h.gain for h in held_out]
    known = [g for g in gains if g is not None]
    curse = None
    if tuned is not None and known and len(known) == len(gains):
        curse = tuned.gain - sum(known) / len(known)
    return SweepResult(
        study=study.study,
        policy=space.policy,
        regime=study.regime,
        search=space.search,
        search_seed=space.seed,
        settings=setting_rows(study, tried),
        left_behind=len(ledger.settings - {t.setting.setting for t in tried}),
        tuned=tuned,
        held_out=held_out,
        verdict=_verdict(held_out),
        winners_curse=curse,
        corrections=_corrections(tuned, held_out, checked=_checked(study, space)),
    )


def _verdict(held_out: Sequence[HeldOut]) -> str:
    """All have to pass, so no correction over loads is due (an intersection of claims)."""
    found = {h.verdict for h in held_out}
    if not found:
        return "not judged"
    if len(found) == 1:
        return found.pop()
    worst = VerdictKind.FAIL if VerdictKind.FAIL.value in found else VerdictKind.INCONCLUSIVE
    return worst.value


def _checked(study: StudyConfig, space: SpaceConfig) -> str:
    """What is known of the judging blocks' part in the search; no more than was looked at."""
    seeds = "no seed of them took part in the search"
    return f"{seeds}; compared with it, {CHECKED}" if has_traces(study, space) else seeds


def _corrections(
    tuned: Tuned | None, held_out: Sequence[HeldOut], *, checked: str
) -> tuple[str, ...]:
    if tuned is None:
        return ()
    said = [
        f"tuning blocks: the best of {tuned.settings_tried} settings, so its p counts "
        f"{tuned.settings_tried} times (Bonferroni); this p carries no claim",
    ]
    if held_out:
        said.append(
            f"judging blocks: {checked}. The gate was run once on them, so the search needs no "
            f"correction; Holm over {held_out[0].family} judged policies"
            + (f"; all of {len(held_out)} loads have to pass" if len(held_out) > 1 else "")
        )
    return tuple(said)


def why_nothing(result: SweepResult) -> str | None:
    """Why no setting could be chosen, by the first of them; None when one was."""
    if result.tuned is not None or not result.settings:
        return None if result.settings else "the search asked for no setting"
    n, first = len(result.settings), result.settings[0]
    if result.counts[State.REFUSED.value] == n:
        return f"all {n} settings asked for were refused; the first: {_why(first)}"
    played = next((r for r in result.settings if r.state != State.REFUSED.value), first)
    return (
        f"no setting has a known gain on every tuning block; setting {played.number} "
        f"{played.setting} ({played.state}): {_why(played)}"
    )


def _why(row: SettingRow) -> str:
    if row.why is not None:
        return row.why
    if row.violation_rate_control == 0:
        return "matched random never violates there, so there is nothing to gain"
    return "a violation rate is unknown: a run did not end, or has no counted request"


def result_json(result: SweepResult) -> dict[str, Any]:
    return {**asdict(result), "counts": result.counts}


def flat_rows(rows: Iterable[SettingRow]) -> list[dict[str, Any]]:
    """Rows for a table file: a column for each parameter and each end of an interval."""
    flat = []
    for row in rows:
        plain: Mapping[str, Any] = asdict(row)
        bounds = row.gain_interval or (None, None)
        own = {k: v for k, v in plain.items() if k not in ("values", "gain_interval")}
        flat.append({**own, "gain_low": bounds[0], "gain_high": bounds[1], **row.values})
    return flat
