"""Rounds, early stopping and resume: the results depend on the input alone."""

import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.config import StudyConfig
from orchestrator.sweep.config import SpaceConfig, Value
from orchestrator.sweep.drive import proposer
from orchestrator.sweep.figures import BlockFigures, from_json
from orchestrator.sweep.here import Plan
from orchestrator.sweep.ledger import Ledger
from orchestrator.sweep.progress import Progress, State, best_of
from orchestrator.sweep.recheck import recheck_setting, recheck_some
from tests.fake_sweep import HALF_LIFE, PlaySweep, plan_of

MakeStudy = Callable[..., StudyConfig]
MakeSpace = Callable[..., SpaceConfig]
STOPPING = {"after_seeds": 2, "confidence": 0.95}


def rows_of(progress: Progress) -> list[tuple[str, str, float | None, list[BlockFigures]]]:
    return [
        (t.setting.setting, t.state.value, t.gain, list(t.rows.values())) for t in progress.tried
    ]


def test_the_best_is_the_setting_nearest_to_the_planted_optimum(
    make_study: MakeStudy, make_space: MakeSpace, play_sweep: PlaySweep
) -> None:
    progress, ledger = play_sweep(make_study(), make_space())
    best = best_of(progress.tried)
    assert best is not None
    lives = [float(t.setting.values[HALF_LIFE]) for t in progress.tried]
    near = min(lives, key=lambda x: max(x / 2.0, 2.0 / x))
    assert best.setting.values[HALF_LIFE] == near
    assert len(progress.tried) == 10
    assert len(ledger.rows) == 60
    assert {t.state for t in progress.tried} == {State.COMPLETE}


def test_controls_are_played_once_for_all_settings_of_a_corridor(
    make_study: MakeStudy, make_space: MakeSpace, play_sweep: PlaySweep, tmp_path: Path
) -> None:
    play_sweep(make_study(), make_space(settings=3), log=tmp_path / "log")
    draws = [int(line.split()[2]) for line in (tmp_path / "log").read_text().splitlines()]
    assert sorted(draws) == [0] * 12 + [4] * 6  # six blocks, three settings


def played_by_many(
    study: StudyConfig, space: SpaceConfig, ledger: Ledger, *, order: random.Random
) -> Progress:
    """Four workers that finish their batches in any order."""
    progress = Progress(study, space, ledger=ledger, proposer=proposer(study, space))
    plan = plan_of(study, space, ledger)
    running: list[tuple[Any, list[Any]]] = []
    while not progress.finished or running:
        while len(running) < 4 and (tried := progress.next()) is not None:
            running.append((tried, progress.todo(tried)))
        i = order.randrange(len(running))
        tried, todo = running[i]
        rows = played(plan, tried, todo.pop(0))
        if not progress.add(tried.setting.setting, rows):
            running.pop(i)
    return progress


def played(plan: Plan, tried: Any, blocks: Any) -> list[BlockFigures]:
    rows = plan.bench.batch(tried.setting.study, setting=tried.setting.setting, blocks=blocks)
    return [from_json(row) for row in rows]


@pytest.mark.parametrize("stopping", [None, STOPPING])
def test_workers_that_finish_in_any_order_give_the_same_results(
    make_study: MakeStudy,
    make_space: MakeSpace,
    play_sweep: PlaySweep,
    tmp_path: Path,
    stopping: dict[str, Any] | None,
) -> None:
    study, space = make_study(), make_space(stopping=stopping)
    alone, ledger = play_sweep(study, space)
    for i in range(5):
        other = Ledger(tmp_path / f"many-{i}.jsonl", identity="test")
        many = played_by_many(study, space, other, order=random.Random(i))
        assert rows_of(many) == rows_of(alone)
        assert other.rows == ledger.rows


def test_a_setting_that_is_clearly_worse_is_stopped_and_never_chosen(
    make_study: MakeStudy, make_space: MakeSpace, play_sweep: PlaySweep
) -> None:
    whole, _ = play_sweep(make_study(), make_space(), name="whole")
    early, ledger = play_sweep(make_study(), make_space(stopping=STOPPING), name="early")
    stopped = [t for t in early.tried if t.state is State.STOPPED]
    assert stopped
    assert all(t.round_ > 1 for t in stopped)  # nothing to compare the first two rounds with
    assert all(0 < len(t.rows) < 6 for t in stopped)
    assert len(ledger.rows) < 60
    best, same = best_of(early.tried), best_of(whole.tried)
    assert best is not None
    assert same is not None
    assert best.setting.setting == same.setting.setting
    assert best.gain == same.gain


def test_a_sweep_cut_off_anywhere_goes_on_to_equal_results(
    make_study: MakeStudy, make_space: MakeSpace, play_sweep: PlaySweep, tmp_path: Path
) -> None:
    study, space = make_study(), make_space(stopping=STOPPING)
    alone, ledger = play_sweep(study, space)
    lines = ledger.path.read_text().splitlines(keepends=True)
    for kept in (0, 1, 7, len(lines) // 2, len(lines) - 1, len(lines)):
        name, log = f"cut-{kept}", tmp_path / f"log-{kept}"
        torn = lines[kept][:40] if kept < len(lines) else ""
        (tmp_path / f"{name}.jsonl").write_text("".join(lines[:kept]) + torn)
        again, other = play_sweep(study, space, name=name, log=log)
        assert rows_of(again) == rows_of(alone)
        assert other.rows == ledger.rows
        assert other.path.read_text() == ledger.path.read_text()
        calls = len(log.read_text().splitlines()) if log.exists() else 0
        assert calls == sum('"entry": "block"' in line for line in lines[kept:])


def test_more_settings_go_on_from_those_that_were_tried(
    make_study: MakeStudy, make_space: MakeSpace, play_sweep: PlaySweep, tmp_path: Path
) -> None:
    few, _ = play_sweep(make_study(), make_space(settings=6))
    more, ledger = play_sweep(make_study(), make_space(settings=9), log=tmp_path / "log")
    assert rows_of(more)[:6] == rows_of(few)
    assert len(ledger.rows) == 54
    assert len((tmp_path / "log").read_text().splitlines()) == 18


def test_a_result_that_does_not_repeat_is_refused(
    make_study: MakeStudy, make_space: MakeSpace, play_sweep: PlaySweep
) -> None:
    _, ledger = play_sweep(make_study(), make_space(settings=1))
    row = ledger.rows[0]
    with pytest.raises(ValueError, match="control_rates are not those of other settings"):
        ledger.add([replace(row, setting="other", control_rates=(0.5,) * 4)])
    changed = BlockFigures(
        **{f: getattr(row, f) for f in row.__slots__ if f != "violation_rate"}, violation_rate=0.5
    )
    ledger.add([row])
    with pytest.raises(ValueError, match="seed 0 came out another way than before"):
        ledger.add([changed])


def test_a_line_damaged_in_the_middle_is_named(
    make_study: MakeStudy, make_space: MakeSpace, play_sweep: PlaySweep
) -> None:
    _, ledger = play_sweep(make_study(), make_space(settings=1))
    whole = ledger.path.read_text()
    lines = whole.splitlines(keepends=True)
    changes = [
        lines[1].replace('"seed"', '"sed"'),
        lines[1].replace('"violation_rate": 0.', '"violation_rate": 0.0'),
        lines[1].replace('"entry": "block"', '"entry": "other"'),
        "[]\n",
    ]
    for changed in changes:
        assert changed != lines[1]
        ledger.path.write_text(lines[0] + changed + "".join(lines[2:]))
        with pytest.raises(ValueError, match=r"results.jsonl, line 2: .* another --out"):
            Ledger(ledger.path, identity="test")
    ledger.path.write_text(whole.rstrip("\n"))  # a kill just before the line's end
    Ledger(ledger.path, identity="test").ask(9, "one more")
    assert len(Ledger(ledger.path, identity="test").rows) == len(ledger.rows)
    with pytest.raises(ValueError, match=r"line 1: its hash does not fit.*to another sweep"):
        Ledger(ledger.path, identity="another")


def test_every_setting_asked_for_counts_for_ever(
    make_study: MakeStudy, make_space: MakeSpace, play_sweep: PlaySweep, tmp_path: Path
) -> None:
    values = {HALF_LIFE: {"values": [2.0, -1.0, 4.0]}}
    _, ledger = play_sweep(make_study(), make_space(parameters=values, search="grid"))
    again = Ledger(ledger.path, identity="test")
    assert (again.asked, len(again.settings)) == (3, 2)  # the refused one was asked for too
    lines = ledger.path.read_text().splitlines(keepends=True)
    ledger.path.write_text("".join(x for x in lines if '"asked"' not in x))
    assert Ledger(ledger.path, identity="test").asked == 2


def forged(ledger: Ledger, path: Path, *, setting: str) -> Ledger:
    """The rates of a setting made up, with hashes that fit."""
    made = Ledger(path, identity="test")
    made.add(replace(r, violation_rate=0.001) if r.setting == setting else r for r in ledger.rows)
    made.close()
    return Ledger(path, identity="test")


def test_finished_blocks_are_played_again_and_have_to_be_equal(
    make_study: MakeStudy, make_space: MakeSpace, play_sweep: PlaySweep, tmp_path: Path
) -> None:
    study, space = make_study(), make_space(settings=4)
    progress, ledger = play_sweep(study, space)
    best = best_of(progress.tried)
    assert best is not None
    assert recheck_setting(best, ledger, plan=plan_of(study, space, ledger)) == 0  # seen played
    again = Ledger(ledger.path, identity="test")
    log = tmp_path / "log"
    plan = plan_of(study, space, again, log=log)
    assert recheck_setting(best, again, plan=plan) == 6
    assert recheck_some(progress.tried, again, plan=plan) == 5
    draws = [int(line.split()[2]) for line in log.read_text().splitlines()]
    assert sorted(set(draws)) == [0, 4]  # controls are played again, once a seed
    loser = min(progress.tried, key=lambda t: t.gain or 0.0)
    lie = forged(ledger, tmp_path / "forged.jsonl", setting=loser.setting.setting)
    told = Progress(study, space, ledger=lie, proposer=proposer(study, space))
    assert told.finished
    winner = best_of(told.tried)
    assert winner is not None
    assert winner.setting.setting == loser.setting.setting
    place = r"forged.jsonl, line \d+: .* violation_rate 0.001 there, 0\.\d+ now"
    with pytest.raises(ValueError, match=place):
        recheck_setting(winner, lie, plan=plan_of(study, space, lie))
    assert loser.state is State.COMPLETE


class Scripted:
    """A search that says what it was told."""

    def __init__(self, *values: Mapping[str, Value]) -> None:
        self.values = list(values)
        self.told: list[tuple[int, float | None]] = []

    def ask(self, number: int) -> Mapping[str, Value] | None:
        return self.values[number] if number < len(self.values) else None

    def tell(self, number: int, gain: float | None) -> None:
        self.told.append((number, gain))


def scripted(study: StudyConfig, space: SpaceConfig, path: Path, search: Scripted) -> Progress:
    ledger = Ledger(path, identity="test")
    progress = Progress(study, space, ledger=ledger, proposer=search)
    plan = plan_of(study, space, ledger)
    while (tried := progress.next()) is not None:
        for blocks in progress.todo(tried):
            progress.add(tried.setting.setting, played(plan, tried, blocks))
    return progress


def test_doubles_and_refused_settings_are_told_and_not_played(
    make_study: MakeStudy, make_space: MakeSpace, tmp_path: Path
) -> None:
    good, bad = {HALF_LIFE: 2.0}, {HALF_LIFE: -1.0}
    search = Scripted(good, bad, good, {HALF_LIFE: 3.0}, good)
    progress = scripted(make_study(), make_space(), tmp_path / "r.jsonl", search)
    assert progress.finished
    assert [t.state for t in progress.tried] == [State.COMPLETE, State.REFUSED, State.COMPLETE]
    gains = [t.gain for t in progress.tried]
    assert search.told == [(0, gains[0]), (1, None), (2, gains[0]), (3, gains[2]), (4, gains[0])]
    assert "half_life_s" in str(progress.tried[1].setting.refused)


def test_a_search_that_only_repeats_itself_ends(
    make_study: MakeStudy, make_space: MakeSpace, tmp_path: Path
) -> None:
    search = Scripted(*[{HALF_LIFE: 2.0}] * 1000)
    progress = scripted(make_study(), make_space(), tmp_path / "r.jsonl", search)
    assert progress.finished
    assert len(progress.tried) == 1
    assert len(search.told) < 300


def test_a_failed_setting_leaves_the_others_and_is_told_as_unknown(
    make_study: MakeStudy, make_space: MakeSpace, tmp_path: Path
) -> None:
    study, space = make_study(), make_space(settings=2, ask_at_once=2)
    search = Scripted({HALF_LIFE: 2.0}, {HALF_LIFE: 3.0})
    progress = Progress(
        study, space, ledger=Ledger(tmp_path / "r.jsonl", identity="test"), proposer=search
    )
    plan = plan_of(study, space, Ledger(tmp_path / "none.jsonl", identity="test"))
    first, second = progress.next(), progress.next()
    assert first is not None
    assert second is not None
    progress.fail(first.setting.setting, "its node is gone")
    for blocks in progress.todo(second):
        progress.add(second.setting.setting, played(plan, second, blocks))
    assert progress.finished
    assert first.state is State.FAILED
    assert search.told == [(0, None), (1, second.gain)]
    assert best_of(progress.tried) is second
