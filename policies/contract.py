"""The contract of a policy as a function: `check_policy(make)` raises at the first broken rule.

    from policies.contract import FRAME, check_policy
    check_policy(lambda: MyConfig(kind="my_kind").build(frame=FRAME, step_interval_s=0.25))

Rules: the same samples give the same decisions bit for bit, also after a trip through JSON; a
pickled policy goes on where it stood; deciding changes no state; what comes later changes no
earlier decision; it answers when nothing is known, and before its first sample.
"""

import json
import pickle
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from policies.corridor import Corridor
from policies.frame import Frame
from policies.observation import (
    Decision,
    IslandProgress,
    Policy,
    Reading,
    Sample,
    Seen,
    SidecarLoad,
    sample_from_record,
)

Make = Callable[[], Policy]
FRAME = Frame(
    corridor=Corridor(floor_ticks=0, ceiling_ticks=11, width_ticks=3, horizon_ticks=60),
    target_gap_ticks=6,
    tick_s=1.0,
)
LOG_TICKS = 60


class ContractBroken(AssertionError):
    """Which rule, and where."""


def check_policy(make: Make, *, seed: int = 0) -> None:
    """Run every rule on logs drawn from ``seed``; ``make`` gives a fresh policy at each call."""
    for log in random_logs(seed=seed):
        cut = len(log) // 2
        check_same_samples_same_decisions(make, log)
        check_json_trip(make, log)
        check_pickled_goes_on(make, log, cut=cut)
        check_deciding_changes_nothing(make, log)
        check_the_past_alone_counts(make, log, [unknown_sample(s) for s in log], cut=cut)
    decisions(make(), [unknown_sample(s) for s in random_logs(seed=seed)[0]])
    answer(make(), seen_at(unknown_sample(random_logs(seed=seed)[0][0])))


def check_same_samples_same_decisions(make: Make, log: Sequence[Sample]) -> None:
    """Two fresh policies on one log."""
    _same(decisions(make(), log), decisions(make(), log), log, "a second run on the same samples")


def check_json_trip(make: Make, log: Sequence[Sample]) -> None:
    """What a record holds gives the decisions again: no bit is lost on the way to the disk."""
    read = [sample_from_record(json.loads(json.dumps(asdict(s)))) for s in log]
    first = decisions(make(), log)
    _same(first, decisions(make(), read), log, "samples read back from JSON")
    for sample, decision in zip(log, first, strict=True):
        try:
            json.dumps(asdict(decision), allow_nan=False)
        except (TypeError, ValueError) as error:
            raise ContractBroken(
                f"tick {sample.tick}: the decision cannot be written as strict JSON ({error}): "
                f"{decision}; unknown is None, numbers are Python's own"
            ) from error


def check_pickled_goes_on(make: Make, log: Sequence[Sample], *, cut: int) -> None:
    """Moved to another process at ``cut``."""
    policy = make()
    before = decisions(policy, log[:cut])
    moved: Policy = pickle.loads(pickle.dumps(policy))
    _same(decisions(make(), log), before + decisions(moved, log[cut:]), log, "pickling")


def check_deciding_changes_nothing(make: Make, log: Sequence[Sample], *, times: int = 2) -> None:
    """Asked often, asked never: the same state and the same next answer."""
    asked, unasked = make(), make()
    last = None
    for sample in log:
        asked.observe(sample)
        unasked.observe(sample)
        state = pickle.dumps(asked)
        answers = [answer(asked, seen_at(sample)) for _ in range(times)]
        last = answers[0]
        if any(a != last for a in answers):
            raise ContractBroken(f"tick {sample.tick}: asked twice, it gave two answers")
        if pickle.dumps(asked) != state:
            raise ContractBroken(f"tick {sample.tick}: decide changed the policy's state")
    if last is not None and answer(unasked, seen_at(log[-1])) != last:
        raise ContractBroken("a policy that was never asked before answers otherwise at the end")


def check_the_past_alone_counts(
    make: Make, log: Sequence[Sample], other: Sequence[Sample], *, cut: int
) -> None:
    """From ``cut`` on other samples: the decisions before it stay."""
    changed = [*log[:cut], *other[cut:]]
    _same(
        decisions(make(), log)[:cut],
        decisions(make(), changed)[:cut],
        log[:cut],
        "other samples later on",
    )


def decisions(policy: Policy, log: Sequence[Sample]) -> list[Decision]:
    """The answer at every tick of a log."""
    answers = []
    for sample in log:
        policy.observe(sample)
        answers.append(answer(policy, seen_at(sample)))
    return answers


def answer(policy: Policy, seen: Seen) -> Decision:
    """One answer, which has to be a Decision."""
    decision = policy.decide(seen)
    if type(decision) is not Decision:
        raise ContractBroken(f"tick {seen.tick}: decide gave {decision!r}, which is no Decision")
    return decision


def seen_at(sample: Sample) -> Seen:
    """Where a run stands whose merges end every 12 ticks, in FRAME's corridor."""
    last_end = sample.tick // 12 * 12
    return Seen(
        tick=sample.tick,
        now_s=sample.now_s,
        tick_s=1.0,
        last_end_tick=last_end,
        earliest_tick=last_end,
        latest_tick=last_end + 11,
        merges_done=sample.tick // 12,
        budget=4,
        width_ticks=3,
        target_gap_ticks=6,
        blind=sample.blind,
    )


def random_logs(*, seed: int) -> list[list[Sample]]:
    """Three logs of LOG_TICKS ticks: all known, some of it missing, late ticks."""
    rng = np.random.default_rng(seed)
    known = [_sample(rng, tick, missing=0.0) for tick in range(LOG_TICKS)]
    holes = [_sample(rng, tick, missing=0.2) for tick in range(LOG_TICKS)]
    late = [replace(s, now_s=s.tick + 0.4 * (s.tick % 2)) for s in known]
    return [known, holes, late]


def unknown_sample(sample: Sample) -> Sample:
    """The same tick with nothing known."""
    return Sample(
        tick=sample.tick,
        now_s=sample.now_s,
        arrivals=None,
        in_flight=None,
        serving=None,
        network=None,
        checkpoint=None,
        islands=(),
        blind=True,
    )


def _sample(rng: np.random.Generator, tick: int, *, missing: float) -> Sample:
    def maybe(value: Any) -> Any:
        return None if rng.random() < missing else value

    busy = tick % 10 < 3
    count = int(rng.integers(20 if busy else 0, 30 if busy else 6))
    readings = [maybe(Reading(value=float(v), age_s=0.1)) for v in rng.random(3)]
    return Sample(
        tick=tick,
        now_s=float(tick),
        arrivals=maybe(count),
        in_flight=maybe(count // 2),
        serving=readings[0],
        network=readings[1],
        checkpoint=readings[2],
        islands=tuple(
            IslandProgress(
                island=i,
                steps_since_merge=tick % 12 * 4,
                tokens_since_merge=tick % 12 * 100,
                loss_drop=maybe(float(rng.normal(0.02, 0.05))),
                staleness_s=float(tick % 12),
            )
            for i in range(2)
        ),
        blind=bool(rng.random() < missing),
        by_sidecar=tuple(
            SidecarLoad(sidecar=s, arrivals=count // (s + 1), in_flight=count // 4)
            for s in range(2)
        ),
    )


def _same(
    first: Sequence[Decision], second: Sequence[Decision], log: Sequence[Sample], what: str
) -> None:
    for sample, a, b in zip(log, first, second, strict=True):
        if repr(a) != repr(b):  # tells 0.0 from -0.0 and an int from a float, as a record does
            raise ContractBroken(f"tick {sample.tick}: {what} changed the decision: {a} is now {b}")
