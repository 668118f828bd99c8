"""One run with one fault through the real command line, and what became of it.

Shared by `make faults` (every fault at many random moments) and by the test that tries each once.
"""

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from orchestrator.training.marks import still_out
from orchestrator.training.record import read_events

ROOT = Path(__file__).parents[2]
STUDY = Path(__file__).with_name("faults.yaml")
LIMIT_S = 240.0  # a run of some seconds that takes longer hangs
PLANNED = {  # by the island itself, at an exact place
    "kill an island in inner steps": ("inner_step", "kill"),
    "kill an island in all-reduce": ("reduce", "kill"),
    "kill an island in a commit": ("commit", "kill"),
    "kill an island in a checkpoint": ("checkpoint", "kill"),
    "freeze an island in inner steps": ("inner_step", "freeze"),
    "freeze an island in all-reduce": ("reduce", "freeze"),
}
OUTSIDE = (
    "kill the coordinator",
    "kill the driver",
    "fill the disk",
    "corrupt the newest checkpoint",
)
FAULTS = (*PLANNED, *OUTSIDE)
READ_LAG_S = 0.05  # from an event on disk to its reader, twice over
GRACE_S = float(yaml.safe_load(STUDY.read_text())["islands"]["elastic"]["grace_s"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """The run without a fault."""

    parameter_hash: str
    losses: list[float]
    decisions: list[Any]
    merges: int
    steps: int
    wall_s: float  # from the first event to the last


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """What became of one run with a fault."""

    fault: str
    moment: str
    ended: str  # by itself | after --resume | not
    recovered_s: float | None  # from the fault to the next merge that was finished
    rounds_lost: int | None
    parameters_equal: bool  # over the islands of the group, after every merge and at the end
    left_out: int  # times an island was dropped
    back: int  # times one joined again
    bit_equal: bool | None  # to the run without a fault; None: an island was left out for a while
    note: str


class Driver:
    """`python -m orchestrator run ...` in its own session, and its log as it grows."""

    def __init__(self, folder: Path, *arguments: str, address: str | None) -> None:
        self.folder = folder
        env = {**os.environ, "PYTHONPATH": str(ROOT)}
        env.pop("RAY_ADDRESS", None)
        if address is not None:
            env["RAY_ADDRESS"] = address
        self.log = (folder / "driver.log").open("a")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "orchestrator", "run", *arguments],
            cwd=ROOT,
            env=env,
            stdout=self.log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def wait(self) -> int:
        """Exit code; TimeoutExpired when it hangs."""
        try:
            return self.process.wait(LIMIT_S)
        finally:
            self.log.close()

    def kill(self) -> None:
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(30)
        self.log.close()


class Watch:
    """When events reached the disk, by the wall; read while the run goes on."""

    def __init__(self, study_dir: Path) -> None:
        self._study_dir = study_dir
        self._stop = threading.Event()
        self.seen: list[tuple[float, str]] = []  # moment, type
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        at = 0
        while not self._stop.wait(0.02):
            run = run_folder(self._study_dir)
            if run is None or not (run / "events.jsonl").exists():
                continue
            data = (run / "events.jsonl").read_bytes()
            if len(data) < at:
                at = 0  # cut back to a checkpoint
                self.seen.append((time.time(), "cut"))
            *lines, _ = data[at:].split(b"\n")
            at += sum(len(line) + 1 for line in lines)
            now_s = time.time()
            self.seen += [(now_s, json.loads(line)["type"]) for line in lines]

    def wait_for(self, kind: str, count: int) -> None:
        deadline_s = time.monotonic() + LIMIT_S
        while sum(name == kind for _, name in self.seen) < count:
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"no {count} events {kind}")
            time.sleep(0.01)

    def close(self) -> None:
        self._stop.set()
        self._thread.join()


def run_folder(study_dir: Path) -> Path | None:
    found = sorted(study_dir.glob("wa_ewma-s0-*"))
    return found[0] if found else None


def write_study(folder: Path, **islands: Any) -> Path:
    raw = yaml.safe_load(STUDY.read_text())
    raw["islands"] |= islands
    path = folder / "study.yaml"
    path.write_text(yaml.safe_dump(raw))
    return path


def reference_run(folder: Path, *, address: str | None) -> Reference:
    """The run without a fault."""
    folder.mkdir(parents=True)
    study = write_study(folder)
    watch = Watch(folder / "runs" / "faults")
    try:
        driver = Driver(folder, str(study), "--out", str(folder / "runs"), address=address)
        code = driver.wait()
    finally:
        watch.close()
    if code != 0:
        raise RuntimeError(f"the run without a fault ended with {code}; see {folder}/driver.log")
    run = run_folder(folder / "runs" / "faults")
    assert run is not None
    facts = facts_of(run)
    moments = [at_s for at_s, _ in watch.seen]
    return Reference(
        parameter_hash=str(facts["hash"]),
        losses=facts["losses"],
        decisions=facts["decisions"],
        merges=int(facts["merges"]),
        steps=max(facts["steps"]),
        wall_s=moments[-1] - moments[0],
    )


def facts_of(run: Path) -> dict[str, Any]:
    """From the record alone; timings left out."""
    import pyarrow.parquet as pq

    events = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    merges = [e for e in events if e["type"] == "merge_finished"]
    out = still_out(read_events(run / "events.jsonl"))
    ended = [e for e in events if e["type"] == "island_finished" and e["island"] not in out]
    hashes = {e["parameter_hash"] for e in ended}
    per_merge = [{p["parameter_hash"] for p in m["parts"] if p["parameter_hash"]} for m in merges]
    table = pq.read_table(run / "train.parquet") if (run / "train.parquet").exists() else None
    order = (
        []
        if table is None
        else sorted(
            zip(
                table["island"].to_pylist(),
                table["step"].to_pylist(),
                table["loss"].to_pylist(),
                strict=True,
            )
        )
    )
    return {
        "status": events[-1].get("status") if events else None,
        "hash": hashes.pop() if len(hashes) == 1 else None,
        "equal": len({e["parameter_hash"] for e in ended}) == 1
        and all(len(one) == 1 for one in per_merge),
        "merges": len(merges),
        "failed": sum(e["type"] == "merge_failed" for e in events),
        "dropped": sum(e["type"] == "island_dropped" for e in events),
        "joined": sum(e["type"] == "island_joined" for e in events),
        "checkpoints_failed": sum(e["type"] == "checkpoint_failed" for e in events),
        "steps": [e["steps"] for e in ended],
        "losses": [loss for _, _, loss in order],
        "decisions": [e["decision"] for e in events if e["type"] == "decided"],
    }


def planned_trial(
    fault: str,
    folder: Path,
    reference: Reference,
    *,
    draw: random.Random,
    address: str | None,
    grace_s: float,
) -> Trial:
    """A fault that the island does to itself."""
    at, do = PLANNED[fault]
    one: dict[str, Any] = {"island": draw.randrange(3), "at": at, "do": do}
    if at == "inner_step":
        one["step"] = draw.randrange(2, reference.steps)
    else:
        one["round"] = draw.randrange(reference.merges - 1)
    if do == "freeze":
        one["freeze_s"] = 2.0 * grace_s  # longer than any grace
    folder.mkdir(parents=True)
    study = write_study(folder, faults=[one], elastic={"quorum": 2, "grace_s": grace_s})
    watch = Watch(folder / "runs" / "faults")
    try:
        code = Driver(folder, str(study), "--out", str(folder / "runs"), address=address).wait()
    finally:
        watch.close()
    run = run_folder(folder / "runs" / "faults")
    assert run is not None
    mark = run / "planned-fault-0"
    if not mark.exists():
        return _trial(fault, str(one), run, reference, code, None, note="the fault did not happen")
    return _trial(fault, str(one), run, reference, code, _recovered(watch, mark.stat().st_mtime))


def outside_trial(
    fault: str, folder: Path, reference: Reference, *, draw: random.Random, address: str | None
) -> Trial:
    """A fault from outside at a random moment of the run."""
    folder.mkdir(parents=True)
    act = {
        "kill the coordinator": _kill_coordinator,
        "kill the driver": _kill_driver,
        "fill the disk": _fill_disk,
        "corrupt the newest checkpoint": _corrupt,
    }[fault]
    return act(fault, folder, reference, draw, address)


def _begin(folder: Path, out: Path, address: str | None) -> tuple[Driver, Watch]:
    study = write_study(folder)
    watch = Watch(out / "faults")
    return Driver(folder, str(study), "--out", str(out), address=address), watch


def _at_a_moment(watch: Watch, reference: Reference, draw: random.Random) -> str:
    """Wait for a random moment of the run: so many decisions, and a part of a tick."""
    decisions = draw.randrange(1, int(0.9 * len(reference.decisions)))
    watch.wait_for("decided", decisions)
    after_s = draw.uniform(0.0, reference.wall_s / len(reference.decisions))
    time.sleep(after_s)
    return f"{after_s:.3f} s after decision {decisions}"


def _kill_coordinator(
    fault: str, folder: Path, reference: Reference, draw: random.Random, address: str | None
) -> Trial:
    driver, watch = _begin(folder, folder / "runs", address)
    try:
        moment = _at_a_moment(watch, reference, draw)
        run = run_folder(folder / "runs" / "faults")
        assert run is not None
        pid = json.loads((run / "processes.json").read_text())["coordinator"]
        killed_at_s = time.time()
        os.kill(pid, signal.SIGKILL)
        code = driver.wait()
    finally:
        watch.close()
    return _trial(fault, moment, run, reference, code, _recovered(watch, killed_at_s))


def _kill_driver(
    fault: str, folder: Path, reference: Reference, draw: random.Random, address: str | None
) -> Trial:
    driver, watch = _begin(folder, folder / "runs", address)
    try:
        moment = _at_a_moment(watch, reference, draw)
        killed_at_s = time.time()
        driver.kill()
        run, code = _resume(folder, address)
    finally:
        watch.close()
    return _trial(fault, moment, run, reference, code, _recovered(watch, killed_at_s), resumed=True)


def _resume(folder: Path, address: str | None) -> tuple[Path, int]:
    run = run_folder(folder / "runs" / "faults")
    assert run is not None
    return run, Driver(folder, "--resume", str(run), address=address).wait()


def _corrupt(
    fault: str, folder: Path, reference: Reference, draw: random.Random, address: str | None
) -> Trial:
    driver, watch = _begin(folder, folder / "runs", address)
    try:
        watch.wait_for("checkpointed", 1 + draw.randrange(reference.merges - 1))
        run = run_folder(folder / "runs" / "faults")
        assert run is not None
        _wait_for_manifest(run)  # which is written after its event
        killed_at_s = time.time()
        driver.kill()
        moment = _damage(run, draw)
        run, code = _resume(folder, address)
    finally:
        watch.close()
    told = "passed over" in (folder / "driver.log").read_text()
    return _trial(
        fault,
        moment,
        run,
        reference,
        code,
        _recovered(watch, killed_at_s),
        resumed=True,
        note="" if told else "the damage was not told",
    )


def _wait_for_manifest(run: Path) -> None:
    deadline_s = time.monotonic() + LIMIT_S
    while not any(run.glob("checkpoint-r*/manifest.json")):
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"{run}: no checkpoint with a manifest")
        time.sleep(0.01)


def _damage(run: Path, draw: random.Random) -> str:
    newest = max(p.parent for p in run.glob("checkpoint-r*/manifest.json"))
    file = draw.choice(sorted(newest.iterdir()))
    data = bytearray(file.read_bytes())
    how = draw.choice(("one bit", "cut", "gone"))
    if how == "gone":
        file.unlink()
    elif how == "cut":
        file.write_bytes(data[: draw.randrange(len(data))])
    else:
        data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
        file.write_bytes(data)
    return f"{how}: {newest.name}/{file.name}"


def _fill_disk(
    fault: str, folder: Path, reference: Reference, draw: random.Random, address: str | None
) -> Trial:
    """The runs folder on a small file system of its own, which fills up for two seconds."""
    small = folder / "runs"
    small.mkdir()
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64m", "lull-faults", str(small)], check=True
    )
    try:
        driver, watch = _begin(folder, small, address)
        try:
            moment = _at_a_moment(watch, reference, draw)
            filled_at_s = time.time()
            _fill(small / "filler")
            time.sleep(2.0)
            (small / "filler").unlink()
            code = driver.wait()
            run = run_folder(small / "faults")
            assert run is not None
            resumed = code != 0
            if resumed:
                run, code = _resume(folder, address)
        finally:
            watch.close()
        return _trial(
            fault, moment, run, reference, code, _recovered(watch, filled_at_s), resumed=resumed
        )
    finally:
        subprocess.run(["umount", str(small)], check=True)


def _fill(path: Path) -> None:
    with path.open("wb", buffering=0) as file:
        for size_bytes in (1 << 20, 1 << 12, 1):
            try:
                while True:
                    file.write(b"\0" * size_bytes)
            except OSError:
                continue


def _recovered(watch: Watch, fault_at_s: float) -> float | None:
    """Seconds to the next merge that was read from the disk; None: there was none."""
    seen_from_s = fault_at_s + READ_LAG_S  # what is read sooner was written before
    after = [at_s for at_s, kind in watch.seen if kind == "merge_finished" and at_s > seen_from_s]
    return after[0] - fault_at_s if after else None


def _trial(
    fault: str,
    moment: str,
    run: Path,
    reference: Reference,
    code: int,
    recovered_s: float | None,
    *,
    resumed: bool = False,
    note: str = "",
) -> Trial:
    facts = facts_of(run)
    whole = code == 0 and facts["status"] == "complete"
    bit_equal = None
    if not facts["dropped"]:
        bit_equal = (
            facts["hash"] == reference.parameter_hash
            and facts["losses"] == reference.losses
            and facts["decisions"] == reference.decisions
        )
    ended = ("after --resume" if resumed else "by itself") if whole else "not"
    return Trial(
        fault=fault,
        moment=moment,
        ended=ended,
        recovered_s=recovered_s,
        rounds_lost=reference.merges - facts["merges"] if whole else None,
        parameters_equal=bool(facts["equal"]),
        left_out=facts["dropped"],
        back=facts["joined"],
        bit_equal=bit_equal,
        note=note or f"exit {code}",
    )


def trial(
    fault: str,
    folder: Path,
    reference: Reference,
    *,
    seed: int,
    address: str | None,
    grace_s: float = GRACE_S,
) -> Trial:
    """The fault at a moment that ``seed`` draws."""
    draw = random.Random(f"{fault}/{seed}")
    if fault in PLANNED:
        return planned_trial(fault, folder, reference, draw=draw, address=address, grace_s=grace_s)
    return outside_trial(fault, folder, reference, draw=draw, address=address)
