"""The player: samples as live ones, known schedules without a tick loop, islands at their pace."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from actors.coordinator.sampling import SampleBuilder
from actors.events import Decided, Event, HistoryTold, MergeFinished, MergeStarted, Ticked
from actors.island.loop import Pacer
from actors.load.snapshot import LoadSnapshot, SidecarSnapshot
from actors.serving.metrics import ServerGauges
from actors.telemetry.pressure import serving_pressure
from actors.telemetry.snapshot import TelemetrySnapshot
from orchestrator.arms import expand_arms
from orchestrator.config import StudyConfig
from orchestrator.plan import study_requests
from orchestrator.records import ArmSpec
from orchestrator.replay.islands import PacedIslands, steps_by_gap
from orchestrator.replay.measure import Played
from orchestrator.replay.player import Scene, make_scene, play, play_schedule
from orchestrator.replay.state import ServerState
from orchestrator.workload.config import HistoryConfig, PoissonConfig, TokenRange
from orchestrator.workload.requests import request_hash
from policies.observation import Sample
from tests.replaying import PLANT, random_study, replay_study

SCHEDULED = ("no_sync", "matched_random", "placebo", "oracle")


def scene_of(study: StudyConfig, seed: int = 0) -> Scene:
    return make_scene(study, seed=seed, plant=PLANT, study_dir=Path())


def arm_of(study: StudyConfig, label: str) -> ArmSpec:
    return next(arm for arm in expand_arms(study) if arm.label == label)


class Watch:
    """Keeps what the coordinator was told, and what live sampling makes of the same servers."""

    def __init__(self, study: StudyConfig) -> None:
        self._study = study
        self._builder = SampleBuilder(study.telemetry, zero_s=0.0, offsets_s={})
        self.seen: list[Event] = []
        self.live: list[Sample] = []
        self.islands: PacedIslands | None = None

    def tick(self, *, now_s: float, servers: Sequence[ServerState], merging: bool) -> None:
        gauges = [ServerGauges(running=s.running, waiting=s.waiting, kv_usage=0.0) for s in servers]
        host = 1.0 if merging else 0.0
        load = LoadSnapshot(
            at_monotonic_s=now_s,
            scheduled_so_far=sum(s.scheduled_so_far for s in servers),
            sent=0,
            in_flight=sum(s.in_flight for s in servers),
            finished=0,
            failed=0,
            by_sidecar=tuple(
                SidecarSnapshot(
                    sidecar=i, scheduled_so_far=s.scheduled_so_far, in_flight=s.in_flight
                )
                for i, s in enumerate(servers)
            ),
        )
        full = self._study.telemetry.serving_full_requests
        telemetry = TelemetrySnapshot(
            at_monotonic_s=now_s,
            serving=serving_pressure(gauges, full_requests=full),
            network=host,
            checkpoint=host,
            serving_at_monotonic_s=now_s,
            network_at_monotonic_s=now_s,
            checkpoint_at_monotonic_s=now_s,
            running=0,
            waiting=0,
            error=None,
        )
        tick = len(self.live)
        self.live.append(
            self._builder.build(tick, now_s=now_s, load=load, telemetry=telemetry, islands=[])
        )

    def events(self, events: Sequence[Event]) -> None:
        self.seen += events

    def end(self, islands: PacedIslands) -> None:
        self.islands = islands


def watched(study: StudyConfig, label: str) -> tuple[Watch, Played]:
    watch = Watch(study)
    return watch, play(scene_of(study), arm_of(study, label), watcher=watch)


@pytest.mark.parametrize("sidecars", [1, 2])
def test_a_sample_is_what_live_sampling_makes_of_the_same_counts(sidecars: int) -> None:
    study = replay_study(sidecars={"count": sidecars})
    watch, played = watched(study, "wa_ewma")
    samples = [e.sample for e in watch.seen if isinstance(e, Ticked)]
    assert len(samples) == 61
    for made, live in zip(samples, watch.live, strict=True):
        fields = {name: getattr(made, name) for name in Sample.__slots__ if name != "islands"}
        assert fields == {name: getattr(live, name) for name in fields}
    at_s = played.answers.at_s
    assert sum(s.arrivals or 0 for s in samples) == int((at_s < 60.0).sum())
    in_flight = [(at_s < t) & (played.answers.done_at_s >= t) for t in range(61)]
    assert [s.in_flight for s in samples] == [int(f.sum()) for f in in_flight]


def same(a: Played, b: Played) -> bool:
    """To the last bit."""
    names = ("at_s", "output_tokens", "first_token_at_s", "done_at_s")
    return (
        (a.starts, a.forced, a.merges) == (b.starts, b.forced, b.merges)
        and a.answers.request_hash == b.answers.request_hash
        and all(
            getattr(a.answers, name).tobytes() == getattr(b.answers, name).tobytes()
            for name in names
        )
    )


def check_known_schedules(*, runs: int, seed: int) -> None:
    """``runs`` random runs, each by ticks and at once."""
    rng = np.random.default_rng(seed)
    done = forced = 0
    while done < runs:
        study = random_study(rng)
        scene = scene_of(study, seed=int(rng.integers(1000)))
        for arm in expand_arms(study):
            if arm.kind not in SCHEDULED or arm.position == "end":
                continue
            by_ticks, at_once = play(scene, arm), play_schedule(scene, arm)
            assert same(by_ticks, at_once), f"{arm.label} of {study.model_dump_json()}"
            assert (len(at_once.starts) > 0) == (arm.kind != "no_sync")
            done += 1
            forced += at_once.forced
    assert forced > 0  # some were at the end of their range


def test_known_schedules_need_no_ticks() -> None:
    check_known_schedules(runs=25, seed=1)


@pytest.mark.slow
def test_known_schedules_need_no_ticks_on_a_thousand_random_runs() -> None:
    check_known_schedules(runs=1000, seed=2)


def test_a_merge_slows_the_requests_beside_it_and_a_marked_window_does_not() -> None:
    study = replay_study()
    scene = scene_of(study)
    plain = play_schedule(scene, arm_of(study, "no_sync-start"))
    marked = play_schedule(scene, arm_of(study, "placebo-of-wa_ewma"))
    merged = play_schedule(scene, arm_of(study, "matched_random-of-wa_ewma-d0"))
    assert marked.answers.done_at_s.tobytes() == plain.answers.done_at_s.tobytes()
    assert (len(marked.starts), marked.merges) == (4, 0)
    assert (merged.answers.e2e_s >= plain.answers.e2e_s - 1e-9).all()
    assert merged.answers.e2e_s.sum() > 1.1 * plain.answers.e2e_s.sum()


def test_merges_end_with_their_windows_and_hold_every_island() -> None:
    watch, played = watched(replay_study(), "wa_score")
    started = [e for e in watch.seen if isinstance(e, MergeStarted)]
    finished = [e for e in watch.seen if isinstance(e, MergeFinished)]
    assert [e.tick for e in started] == list(played.starts)
    assert [e.at_s for e in finished] == [e.planned_end_s for e in started]
    for end, start in zip(finished, started, strict=True):
        assert [p.island for p in end.parts] == [0, 1]
        assert [p.emulated_s for p in end.parts] == [4.0, 4.0]  # the model's own, nothing real
        assert end.at_s == start.planned_end_s


def paced(
    interval_s: float, *, pauses: Sequence[tuple[float, float]], until_s: float
) -> list[float]:
    """Start times by the Pacer of a live island that is never late."""
    pacer = Pacer(interval_s=interval_s, first_s=0.0)
    left, starts = list(pauses), []
    while pacer.due_s < until_s:
        if left and pacer.due_s >= left[0][0] - 1e-9:
            pacer.restart(at_s=left.pop(0)[1])
            continue
        starts.append(pacer.due_s)
        pacer.started(pacer.due_s)
    return starts


def test_islands_make_the_steps_of_a_paced_loop_and_none_in_a_window() -> None:
    watch, played = watched(replay_study(), "wa_score")
    assert watch.islands is not None
    rows = list(watch.islands.train_rows(horizon_ticks=60))
    windows = [(float(t), t + 4.0) for t in played.starts]
    expected = paced(0.1, pauses=windows, until_s=60.0 - 1e-9)
    for island in (0, 1):
        mine = [row for row in rows if row["island"] == island]
        np.testing.assert_allclose([row["at_s"] for row in mine], expected, atol=1e-6)
        assert [row["step"] for row in mine] == list(range(1, len(mine) + 1))
    samples = [e.sample for e in watch.seen if isinstance(e, Ticked)]
    for sample in samples:
        since = [w for w in windows if w[0] < sample.now_s]
        from_s = since[-1][1] if since else 0.0
        steps = sum(from_s - 1e-9 <= s < sample.now_s - 1e-9 for s in expected)
        for progress in sample.islands:
            assert progress.steps_since_merge == steps
            assert progress.tokens_since_merge == 32 * steps
            assert progress.staleness_s == max(0.0, sample.now_s - from_s)
            assert (progress.loss_drop is None) == (steps < 2)
    losses = [row["loss"] for row in rows if row["island"] == 0]
    early = samples[4].islands[0]  # no merge so far
    assert early.loss_drop == losses[0] - losses[39]


def test_a_step_has_passed_when_the_next_one_is_due() -> None:
    assert steps_by_gap(step_interval_s=0.1, tick_s=1.0, horizon_ticks=3) == (0, 10, 20, 30)
    assert steps_by_gap(step_interval_s=0.3, tick_s=0.5, horizon_ticks=4) == (0, 1, 3, 5, 6)


def scored(watch: Watch) -> list[Decided]:
    return [e for e in watch.seen if isinstance(e, Decided) and e.decision.terms]


def with_history() -> StudyConfig:
    tokens = TokenRange(low=16, high=16)
    load = PoissonConfig(kind="poisson", rate_per_s=4.0, prompt_tokens=tokens, output_tokens=tokens)
    history = HistoryConfig(length_s=30.0, service_s=0.1)
    return replay_study().model_copy(update={"load": load, "history": history})


def test_policies_are_told_the_traffic_before_the_run_as_live() -> None:
    study = with_history()
    plain = study.model_copy(update={"history": None})
    watch, _ = watched(study, "wa_ewma")
    (told,) = [e for e in watch.seen if isinstance(e, HistoryTold)]
    assert (told.first_tick, sum(told.arrivals) > 60) == (-30, True)
    assert isinstance(watch.seen[2], Ticked)
    untold, _ = watched(plain, "wa_ewma")
    slow = [dict(d.decision.terms)["rate_slow"] for w in (watch, untold) for d in scored(w)[:1]]
    assert slow[0] != slow[1]  # the first forecast starts from what was told


def test_a_replay_plays_the_requests_of_the_live_run() -> None:
    """With a history too: they are the same draw, and go on where it ended."""
    study = with_history()
    arm = expand_arms(study)[0]
    answers = play(make_scene(study, seed=5, plant=PLANT, study_dir=Path()), arm).answers
    live = study_requests(study.model_copy(update={"seeds": (5,)}), Path())[5]
    assert answers.requests == live
    assert answers.request_hash == request_hash(live)
