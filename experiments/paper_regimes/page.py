"""README.md: what the replay reproduces, with every figure computed where the page is written."""

import textwrap
from collections.abc import Mapping, Sequence

import numpy as np
from scipy import stats

from experiments.paper_regimes.effects import BURSTY, REPRODUCED, STEADY, Arm, Effect
from experiments.paper_regimes.looped import KNOWS_BURSTS
from experiments.paper_regimes.matched import Matched
from experiments.paper_regimes.published import FACTOR_OF, Published
from policies.config import CorridorConfig

PAGE = """# Which published effects come out of a replay, at the published and at equal exposure?

Written by `python -m experiments.paper_regimes --out experiments/paper_regimes`. **Simulated**:
source replay, engine model, a plant made of published figures and fitted to no server. It says what
exposure does in the paper's setting, and nothing of a real server.

{answer}

## Settings

Closed loop, {users} requests under way (bursty: {quiet}, and {busy} in the first {burst:g} s of
every {period:g} s), {tokens} tokens an answer, {horizon:g} s, windows of {window:g} s, SLO
{slo:g} s. In a window every step takes {factor:.3f} times as long (stage 10, `{factor_of}`). An
answer takes {answer_s:.3f} s outside windows, whatever the batch: over all runs of stage 11,
requests under way x time worked / requests.

- **Exposure as published**: as many windows as were realised (traces of {shortest:.0f} to
  {longest:.0f} s, repeated to {horizon:g} s). When the published merges were is unknown, so every
  policy gets windows placed uniformly at random in its trace, {least:g} s apart at least (evenly
  where its interval is fixed): *there is no policy in it*. Only stage12_calibrated_replay, whose
  schedule knew the bursts, gets windows that touch none. {replicates} replicates a policy, seed
  {seed}.
- **Exposure matched**: `lull replay` of [steady.yaml](steady.yaml) and [bursty.yaml](bursty.yaml):
  {budget} windows for everyone, {floor} to {ceiling} steps apart; policies see the load and decide.
  Random: {draws} schedules of the same set.

## Effects

Ratios. Reproduced: within {close:.0f} % of the published ratio. Matched: fixed_h, wa_score and
random stand for fixed_h_256, wa_diloco and random_matched.

{effects}
## Violation rates, exposure as published

{rates}
## Violation rates, exposure matched

{matched}
![violation rate against merge seconds, and at equal exposure](exposure.png)

## What to take from it

{findings}"""


def table(head: Sequence[str], rows: Sequence[Sequence[str]], *, words: int) -> str:
    """Markdown; the first ``words`` columns hold words."""
    rule = ["---"] * words + ["--:"] * (len(head) - words)
    return "".join(f"| {' | '.join(row)} |\n" for row in (head, rule, *rows))


def effect_table(found: Sequence[Effect]) -> str:
    rows = [
        (
            e.load,
            e.what,
            f"{e.published:.2f}",
            f"{e.replayed:.2f}",
            "yes" if e.reproduced else f"no ({100 * e.apart:+.0f} %)",
            "-" if e.matched is None else f"{e.matched:.2f}",
        )
        for e in found
    ]
    head = ("load", "ratio", "published", "replay, exposure as published", "reproduced")
    return table((*head, "replay, exposure matched"), rows, words=2)


def rate_table(
    published: Mapping[str, Mapping[str, Arm]], replayed: Mapping[str, Mapping[str, Arm]]
) -> str:
    rows = [
        (
            load,
            label,
            *(f"{a.windows:.1f}" for a in (arm, replayed[load][label])),
            *(f"{100 * a.rate:.2f}" for a in (arm, replayed[load][label])),
            *(f"{a.per_window:.1f}" for a in (arm, replayed[load][label])),
            *(f"{a.requests:.0f}" for a in (arm, replayed[load][label])),
        )
        for load in (STEADY, BURSTY)
        for label, arm in published[load].items()
    ]
    pairs = ("windows", "violations, %", "violations a window", "requests")
    head = [f"{what}, {whose}" for what in pairs for whose in ("published", "replay")]
    return table(("load", "policy", *head), rows, words=2)


def matched_table(found: Mapping[str, Sequence[Matched]]) -> str:
    rows = [
        (
            load,
            m.arm,
            f"{m.windows:.1f}",
            f"{100 * m.rate:.2f}",
            f"{m.per_window:.1f}",
            span(m) if m.arm == "random" else place(m, own),
        )
        for load, own in found.items()
        for m in own
    ]
    head = ("load", "arm", "windows", "violations, %", "violations a window")
    return table((*head, "90 % of the random schedules; share of them below"), rows, words=2)


def span(random: Matched) -> str:
    low, high = random.middle
    return f"{100 * low:.2f} to {100 * high:.2f}"


def place(one: Matched, own: Sequence[Matched]) -> str:
    """Share of the random schedules that violate less."""
    random = next(m for m in own if m.arm == "random")
    return f"{100 * float(np.mean(np.array(random.rates) < one.rate)):.0f} % below"


def answer(
    found: Sequence[Effect],
    published: Mapping[str, Mapping[str, Arm]],
    replayed: Mapping[str, Mapping[str, Arm]],
) -> str:
    """The result in one paragraph."""
    alone = [e for e in found if KNOWS_BURSTS not in e.what]
    known = [e for e in found if KNOWS_BURSTS in e.what]
    spread = next(e for e in found if e.load == STEADY)
    assert spread.matched is not None
    orders = ", ".join(
        f"{rank_correlation(published[load], replayed[load]):.2f} ({load})" for load in published
    )
    return filled(
        f"**{sum(e.reproduced for e in alone)} of {len(alone)} published ratios come out of the "
        f"exposure alone, without any policy**, and {sum(e.reproduced for e in known)} of "
        f"{len(known)} of the schedule that knew the bursts once its windows keep off them. "
        f"Violation rates of the steady load differ {spread.published:.1f} times as published, "
        f"{spread.replayed:.1f} times with as many windows placed at random, and "
        f"{spread.matched:.2f} times when all merge equally often. "
        f"Rank correlation of replayed and published rates over policies: {orders}."
    )


def filled(text: str, *, bullet: str = "") -> str:
    return textwrap.fill(
        bullet + text, 120, subsequent_indent=" " * len(bullet), break_on_hyphens=False
    )


def rank_correlation(one: Mapping[str, Arm], other: Mapping[str, Arm]) -> float:
    """Of the violation rates of the same policies."""
    pairs = [(arm.rate, other[policy].rate) for policy, arm in one.items()]
    return float(stats.spearmanr(pairs).statistic)


def findings(
    found: Sequence[Effect],
    published: Mapping[str, Mapping[str, Arm]],
    replayed: Mapping[str, Mapping[str, Arm]],
    matched: Mapping[str, Sequence[Matched]],
) -> str:
    """Bullets; each sentence from its own numbers."""
    missed = [
        f"{e.load}, {e.what} ({e.published:.2f}, replay {e.replayed:.2f})"
        for e in found
        if not e.reproduced
    ]
    lines = [
        f"Not reproduced: {'; '.join(missed) or 'none'}.",
        f"A ratio near 1 is easily within {100 * REPRODUCED:.0f} %; the large ones carry the "
        "result. The p95 inside over outside windows is the factor that was put in.",
        _per_window(published, replayed),
        *(_outside(load, own) for load, own in matched.items()),
        "The steady load comes in rounds, so a window catches one round more or less, by a phase "
        "that no policy sees; differences between policies at equal exposure are of that size.",
        "One traffic pattern serves all seeds, as published: a policy's run is the same in each, "
        "so there is one observation a policy and no test. Nor does a closed loop have traffic "
        "before the run for policies that learn. Whether a policy places merges well is the "
        "question of the [regimes](../REGIMES.md), whose seeds have their own traffic.",
    ]
    return "\n".join(filled(line, bullet="- ") for line in lines) + "\n"


def _per_window(
    published: Mapping[str, Mapping[str, Arm]], replayed: Mapping[str, Mapping[str, Arm]]
) -> str:
    more = [
        100 * (replayed[load][policy].per_window / arm.per_window - 1)
        for load, arms in published.items()
        for policy, arm in arms.items()
    ]
    return (
        f"Violations a window: {float(np.mean(more)):+.0f} % against the published ones (by policy "
        f"{min(more):+.0f} to {max(more):+.0f} %). The published p95 inside windows is higher than "
        "the factor of stage 10 gives, and the longer an answer takes, the fewer of them fit into "
        "a window."
    )


def _outside(load: str, own: Sequence[Matched]) -> str:
    random = next(m for m in own if m.arm == "random")
    low, high = random.middle
    names = [m.arm for m in own if m.arm != "random" and not low <= m.rate <= high]
    return (
        f"At equal exposure, {load}: {', '.join(names) or 'no policy'} outside the range of 90 % "
        f"of the random schedules, which is {span(random)} %."
    )


def write_page(
    published: Published,
    arms: Mapping[str, Mapping[str, Mapping[str, Arm]]],
    found: Sequence[Effect],
    matched: Mapping[str, Sequence[Matched]],
    *,
    replicates: int,
    seed: int,
    least_s: float,
    corridor: CorridorConfig,
) -> str:
    """The whole page; ``arms``: by published or replayed, load, policy."""
    traces_s = [r.exposure.trace_s for runs in published.steady.values() for r in runs]
    own = (arms["published"], arms["replayed"])
    draws = {len(next(m for m in f if m.arm == "random").rates) for f in matched.values()}
    return PAGE.format(
        answer=answer(found, *own),
        users=published.users,
        quiet=published.quiet_users,
        busy=published.busy_users,
        burst=published.burst_s,
        period=published.burst_period_s,
        tokens=published.tokens,
        horizon=published.horizon_s,
        window=published.window_s,
        slo=published.slo_s,
        factor=published.factor,
        factor_of=FACTOR_OF,
        answer_s=published.answer_s,
        shortest=min(traces_s),
        longest=max(traces_s),
        least=least_s,
        floor=corridor.floor_steps,
        ceiling=corridor.ceiling_steps,
        replicates=replicates,
        seed=seed,
        budget=corridor.budget_merges,
        draws=" and ".join(str(n) for n in sorted(draws)),
        close=100 * REPRODUCED,
        effects=effect_table(found),
        rates=rate_table(*own),
        matched=matched_table(matched),
        findings=findings(found, *own, matched),
    )
