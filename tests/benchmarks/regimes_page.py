"""The page and the plot of the six regimes, from what their replays left on disk."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.lines import Line2D

from orchestrator.replay.calibrated import Calibration
from orchestrator.replay.standing import plant_words
from orchestrator.report.canvas import (
    BLUE,
    GREY,
    INK,
    ORANGE,
    RULE,
    footnote,
    legend,
    name_rows,
    new_figure,
    place,
    save,
    title,
)
from tests.benchmarks.playing import Share
from tests.benchmarks.policy_page import table
from tests.benchmarks.regimes import Regime

BUT_REPLAY = "INCONCLUSIVE: every condition of the replay is met but `replay`"
NO_CLAIM = "a control, or not judged"
COLOURS = {"PASS": BLUE, "FAIL": ORANGE, BUT_REPLAY: BLUE, "INCONCLUSIVE": INK, NO_CLAIM: GREY}
MARKERS = {"PASS": "o", "FAIL": "X", BUT_REPLAY: "v", "INCONCLUSIVE": "s", NO_CLAIM: "D"}


def percent(found: Share | float) -> str:
    if isinstance(found, float):
        return f"{100 * found:.1f}"
    if not np.isfinite(found.low):
        return f"{100 * found.value:.1f}"
    return f"{100 * found.value:.1f} [{100 * found.low:.1f}, {100 * found.high:.1f}]"


def said(verdict: Mapping[str, Any]) -> str:
    """The verdict, and whether the plant alone keeps it from PASS."""
    word: str = verdict["verdict"]
    return BUT_REPLAY if word == "INCONCLUSIVE" and not_met(verdict) == ["replay"] else word


def as_expected(expected: str, verdict: str) -> str:
    """yes, no, a dash where nothing was expected; in the model: but for what the plant may say."""
    if expected == "open":
        return "-"
    if verdict == BUT_REPLAY:
        return {"PASS": "in the model", "INCONCLUSIVE": "yes"}.get(expected, "**no**")
    met = verdict != "PASS" if expected == "no PASS" else verdict == expected
    return "yes" if met else "**no**"


def summary(regimes: Sequence[Regime]) -> str:
    rows = []
    for r in regimes:
        for policy, verdict in r.verdicts.items():
            gain = verdict["relative_gain"]
            rows.append(
                [
                    f"[{r.name}](regime_{r.name})",
                    f"`{policy}`",
                    r.expected[policy],
                    said(verdict),
                    as_expected(r.expected[policy], said(verdict)),
                    "unknown" if gain is None else f"{100 * gain:.1f}",
                    ", ".join(not_met(verdict)) or "none",
                ]
            )
    head = ["regime", "policy", "expected", "verdict", "as expected", "gain, by the gate, %"]
    return table([*head, "conditions not met"], rows)


def not_met(verdict: Mapping[str, Any]) -> list[str]:
    """Conditions of the gate that keep it from PASS, in its order."""
    return [c["name"] for c in verdict["conditions"] if c["status"] != "met"]


def detail(r: Regime) -> str:
    rows = []
    for policy in r.policies:
        verdict = r.verdicts.get(policy)
        p = None if verdict is None else verdict["p_holm"]
        rows.append(
            [
                f"`{policy}`",
                percent(float(np.mean(r.column(policy, "violation_rate")))),
                percent(float(np.mean(r.random(policy, "violation_rate")))),
                percent(r.gain(policy)),
                percent(r.closed(policy)),
                percent(r.gain(policy, "violations_not_yet_arrived")),
                "-" if p is None else f"{p:.2g}",
                "not judged" if verdict is None else said(verdict),
                r.expected.get(policy, "-"),
            ]
        )
    head = [
        "policy",
        "violations, %",
        "random, %",
        "gain, %",
        "closed, %",
        "gain, not yet arrived, %",
    ]
    return table([*head, "p, Holm", "verdict", "expected"], rows)


def facts(r: Regime) -> str:
    """What the table stands on, in one paragraph."""
    quiet = "no_sync-start"
    effect = r.effect()
    none, best = (float(np.mean(r.column(arm, "violation_rate"))) for arm in (quiet, r.oracle))
    return (
        f"{len(r.seeds)} seeds, {np.mean(r.column(quiet, 'requests_scheduled')):.0f} requests and "
        f"{r.study['corridor']['budget_merges']} merges a run, {len(r.draws_of(r.policies[0]))} "
        f"random schedules a seed. Without merges {percent(none)} % violate, with the oracle's "
        f"{percent(best)} %. "
        f"p95 in a random window is {effect.value:.2f} [{effect.low:.2f}, {effect.high:.2f}] times "
        "that of the same requests without merges."
    )


def reasons(r: Regime) -> str:
    return "".join(f"- `{p}`: {v['verdict']}: {v['reason']}\n" for p, v in r.verdicts.items())


def standing(regimes: Sequence[Regime]) -> str:
    """What keeps the plant from speaking of these studies, before any number; "" where nothing."""
    found: dict[str, list[str]] = {}
    for r in regimes:
        for verdict in list(r.verdicts.values())[:1]:
            for c in verdict["conditions"]:
                if c["name"] == "replay" and c["status"] != "met":
                    state = str(c["status"]).replace("_", " ")
                    found.setdefault(f"`replay` is {state}: {c['why']}", []).append(r.name)
    lines = [f"> **{why}** ({', '.join(names)})\n" for why, names in found.items()]
    if not lines:
        return ""
    return (
        "> **No claim, not even of tier 0: the plant may not speak of these studies.**\n>\n"
        + ">\n".join(lines)
        + ">\n> Where the verdict says *every condition of the replay is met but `replay`*, the "
        "policy is better than\n> matched random in this model's own world, and that is all.\n\n"
    )


def plant_facts(known: Calibration) -> str:
    """Whose numbers these are and how far off, in the gate's words; then the numbers."""
    law = ", ".join(f"{name} {value:.4g}" for name, value in known.plant.model_dump().items())
    words = "; ".join(plant_words(known))
    return f"{words[0].upper()}{words[1:]} ({law})"


PAGE = """# Six regimes in replay

Written by `make regimes` (`tests/benchmarks/bench_regimes.py`) from `lull replay` and `lull gate`.
Source: replay, engine: model; **tier 0 at most: nothing here is said of a real server**.

{standing}{plant}.

- gain = (random - policy) / random, of SLO violations against matched random: as many merges,
  placed uniformly inside the same corridor. closed = (random - policy) / (random - oracle). Ratios
  of means over seeds with 90 % intervals (delta method, t), means of counts; the two columns of
  rates are means of the seeds' own rates, whose ratio is the gate's gain: another one where seeds
  hold unequally many requests (azure_code).
- *Not yet arrived*: violations among requests that came after their merge had begun. A policy's
  skill shows there; the others it saves by starting when few requests are in flight.
- The verdict is the gate's, with the thresholds that stand in each regime's README; p is one-sided,
  after Holm over the judged policies. What was expected was written there before the first of these
  seeds was replayed.
- The oracle knows all arrivals and takes the schedule with the fewest in its windows; where a queue
  outlives its window it is no strict bound.

{summary}
![gain of each policy over matched random]({figure})

{details}
## Caveats

{caveats}"""


def page(regimes: Sequence[Regime], *, plant: Calibration, figure: str) -> str:
    """The whole page, markdown."""
    details = "\n".join(
        f"## {r.name}: {r.study['question']}\n\n{facts(r)}\n\n{detail(r)}\n{reasons(r)}"
        for r in regimes
    )
    caveats = dict.fromkeys(caveat for r in regimes for caveat in r.caveats)
    return PAGE.format(
        caveats="".join(f"- {caveat}\n" for caveat in caveats),
        standing=standing(regimes),
        plant=plant_facts(plant),
        summary=summary(regimes),
        figure=figure,
        details=details,
    )


def draw(regimes: Sequence[Regime], path: Path) -> Path:
    """Gain of each policy in each regime with its interval; colour and shape say the verdict."""
    names = [(r, p) for r in regimes for p in r.policies]
    steps = [1.0 if a[0] is b[0] else 1.8 for a, b in pairwise(names)]
    gaps = np.concatenate([[0.0], np.cumsum(steps)])
    figure = new_figure(height_in=1.9 + 0.21 * float(gaps[-1]))
    axes = place(
        figure, top_in=0.85, height_in=0.35 + 0.21 * float(gaps[-1]), left_in=2.6, right_in=0.3
    )
    for (r, policy), at in zip(names, gaps, strict=True):
        verdict = r.verdicts.get(policy)
        kind = NO_CLAIM if verdict is None else said(verdict)
        gain = r.gain(policy)
        half = [[100 * (gain.value - gain.low)], [100 * (gain.high - gain.value)]]
        axes.errorbar(
            [100 * gain.value],
            [at],
            xerr=half,
            fmt=MARKERS[kind],
            color=COLOURS[kind],
            ms=5,
            lw=1.2,
        )
    name_rows(axes, [f"{r.name}: {p}" for r, p in names], at=[float(g) for g in gaps])
    axes.set_ylim(float(gaps[-1]) + 1, -1)
    axes.axvline(0.0, color=INK, lw=0.8)
    axes.axvline(5.0, color=RULE, lw=1.2, ls="--")
    axes.grid(axis="x", color=RULE, lw=0.6)
    axes.set_xlabel("SLO violations saved against matched random, % (90 % interval over seeds)")
    title(figure, "Gain over matched random, six regimes", made="SIMULATED: replay, engine=model")
    legend(
        figure,
        [
            Line2D([], [], ls="none", marker=MARKERS[k], color=c, label=k)
            for k, c in COLOURS.items()
        ],
    )
    footnote(figure, "Dashed: 5 %, the floor that the lower bound of a claim has to reach.")
    return save(figure, path)
