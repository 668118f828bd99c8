"""A calibration in words and tables."""

from collections.abc import Iterable

from rich import box
from rich.table import Table

from orchestrator.replay.calibrated import (
    LEAST_SEEDS,
    POINTS,
    Calibration,
    FigureError,
    MachineSpeed,
    seeds_outside,
)

SHORT = {"excess_per_merge_s": "excess/merge", "violation_rate": "viol. rate"}
WITHIN = {True: "within", False: "MISSED", None: ""}


def facts_lines(made: Calibration) -> list[str]:
    """Where the numbers come from, and what they are."""
    fitted, fit, plant = made.fitted_on, made.fit, made.plant
    assert fitted is not None
    assert fit is not None
    real = "" if fitted.engine == "vllm" and fitted.source == "live" else " (SIMULATED: no server)"
    by_hand = " (chosen by hand)" if fitted.by_hand else ""
    return [
        f"study {fitted.study}: engine={fitted.engine} {fitted.engine_version}, "
        f"source={fitted.source}{real}",
        f"  fit       {fitted.selection}{by_hand}: {len(fitted.runs)} runs, "
        f"{fit.requests} requests, loss {fit.objective:.4g} after {fit.evaluations} evaluations",
        f"  step      {plant.step_base_s * 1e3:.3g} ms + {plant.step_per_seq_s * 1e3:.3g} ms a "
        f"sequence + {plant.prefill_per_token_s * 1e6:.3g} us a prompt token; {plant.slots} slots",
        f"  before    {plant.overhead_s * 1e3:.3g} ms, log sd {plant.overhead_log_sd:.2g}",
        f"  pace      log sd {plant.pace_log_sd:.2g} over {plant.pace_slot_s:g} s",
        f"  merge     a step of d takes d + {plant.merge_factor - 1:.3g} (d + "
        f"{plant.merge_step_s * 1e3:.3g} ms), log sd {plant.merge_factor_log_sd:.2g} over windows",
        "  level     "
        + (
            "not known: what a merge adds to requests was not measured on both sides"
            if fit.merge_level is None
            else f"merge's cost times {fit.merge_level:.3g}, so that it adds what was measured"
        ),
        f"  calm      the first {plant.merge_calm_s:.2g} s of a window slow nothing, log sd "
        f"{plant.merge_calm_log_sd:.2g}",
    ]


def transfer_lines(made: Calibration) -> list[str]:
    """What the transfer check comes to."""
    transfer = made.transfer
    if transfer is None:
        return ["transfer: no run was held out, so none was predicted; this plant carries no claim"]
    n = len(seeds_outside(made))
    few = n < LEAST_SEEDS
    words = {
        True: "every aim is met",
        False: "an aim is missed",
        None: "a figure is unknown, so it is not shown",
    }
    lines = [
        f"decisions: {d.arm}: {d.same_tick} of {d.merges} merges at the live tick, "
        f"{d.within_one_tick} within one ({d.seeds} seeds)"
        for d in transfer.decisions
    ]
    seeds = f"{n} seed{'s' if n != 1 else ''} outside the fit"
    if few:
        words[True] = f"point errors within the aims on {seeds}"
    short = f": too few to carry anything ({LEAST_SEEDS} needed)" if few else ""
    lines += [f"note: {note}" for note in transfer.notes]
    if transfer.machine is not None:
        lines.append(_machine_words(transfer.machine))
    return [
        *lines,
        f"transfer: {words[transfer.within]} ({len(transfer.runs)} runs held out, {seeds}){short}",
    ]


def _machine_words(machine: MachineSpeed) -> str:
    by_seed = [f"{token_s * 1e3:.3g}" for _, token_s in machine.by_seed]
    return (
        f"machine: a token took {machine.times:.2f} times as long in the runs held out as in the "
        "fitted ones (10th percentile of TPOT in no_sync; seed by seed "
        f"{' '.join(by_seed) or 'unknown'} ms); the errors hold that too"
    )


def errors_table(title: str, figures: Iterable[FigureError]) -> Table:
    """For a terminal of 80 columns; figures that nobody knows are left out."""
    table = Table(
        title=title,
        box=box.SIMPLE_HEAD,
        title_justify="left",
        caption="times in s; error: relative, or points of a rate; 95 %: over n seeds",
        caption_justify="left",
        padding=(0, 1, 0, 0),
        pad_edge=False,
    )
    table.add_column("figure")
    table.add_column("runs")
    for name in ("measured", "model", "error", "95 %", "aim", "", "n"):
        table.add_column(name, justify="right")
    for f in figures:
        if f.measured is None and f.predicted is None:
            continue
        interval = "-"
        if f.interval is not None:
            interval = " ".join(f"{100 * x:+.0f}" for x in f.interval)
        table.add_row(
            SHORT.get(f.figure, f.figure.removesuffix("_s")),
            f.group,
            _number(f.measured),
            _number(f.predicted),
            _error(f.figure, f.error),
            interval,
            "-" if f.aim is None else _error(f.figure, f.aim).lstrip("+"),
            WITHIN[f.within],
            str(f.seeds),
        )
    return table


def _number(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.4g}"


def _error(figure: str, value: float | None) -> str:
    if value is None:
        return "unknown"
    return f"{100 * value:+.1f} {'pp' if figure in POINTS else '%'}"
