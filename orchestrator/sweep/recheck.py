"""Finished blocks played again and compared with results.jsonl: a replay repeats to the bit.

On resume some blocks drawn by seed; before the judging every block of the chosen setting that
this process has not seen played. A rate that was made up for the winner is always found.
"""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, fields, replace

from orchestrator.sweep.figures import BlockFigures
from orchestrator.sweep.here import Plan
from orchestrator.sweep.ledger import Ledger
from orchestrator.sweep.progress import Tried
from policies.streams import stream

RECHECKED = 5  # blocks of a resumed sweep


def recheck_some(tried: Sequence[Tried], ledger: Ledger, *, plan: Plan) -> int:
    """Some of the blocks on disk, drawn by the search's seed and their number; how many."""
    rows = [(t, row) for t in tried for _, row in sorted(t.rows.items())]
    rng = stream(plan.space.seed, "sweep-recheck", len(rows))
    drawn = rng.permutation(len(rows))[:RECHECKED]
    return _recheck([rows[int(i)] for i in drawn], ledger, plan=plan)


def recheck_setting(tried: Tried, ledger: Ledger, *, plan: Plan) -> int:
    """Every block of one setting that was on disk before this process began; how many."""
    rows = [(tried, row) for _, row in sorted(tried.rows.items()) if ledger.is_old(row)]
    return _recheck(rows, ledger, plan=plan)


def _recheck(rows: Iterable[tuple[Tried, BlockFigures]], ledger: Ledger, *, plan: Plan) -> int:
    """ValueError with line, field and both values at the first difference."""
    # Controls of its own: those that are known came from the file that is checked.
    bench, count = replace(plan.bench, controls={}), 0
    for tried, row in rows:
        assert tried.setting.study is not None
        again = bench.figures(tried.setting.study, setting=row.setting, block=row.block)
        if again != row:
            raise ValueError(
                f"{ledger.place(row)}: setting {row.setting}, {row.block.name} was played again "
                f"and came out another way: {_difference(row, again)}; the file was changed, or "
                "the code was: start again with another --out"
            )
        count += 1
    return count


def _difference(row: BlockFigures, again: BlockFigures) -> str:
    then, now = asdict(row), asdict(again)
    names = [f.name for f in fields(row) if then[f.name] != now[f.name]]
    return ", ".join(f"{n} {_short(then[n])} there, {_short(now[n])} now" for n in names)


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= 40 else f"{text[:40]}..."
