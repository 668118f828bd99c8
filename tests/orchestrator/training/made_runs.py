"""Runs on the step clock as islands and coordinator would leave them, without either."""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from actors.coordinator.step_clock import ResumeFrom
from actors.events import (
    ArmStarted,
    Checkpointed,
    Event,
    IslandFinished,
    MergeFinished,
    MergePart,
    Validated,
)
from actors.merge_messages import CheckpointFile
from orchestrator.training.record import StepWriter

PROVENANCE = {"source": "training", "engine": "none", "engine_version": None}
CONFIG: dict[str, Any] = {"study": {}, "seed": 0, "run_hash": "0" * 12, "request_hash": "1" * 64}
NAMES = ("globals.safetensors", "island-0.safetensors")


def content(name: str, round_: int) -> bytes:
    return f"{name.removesuffix('.safetensors')} after merge {round_}\n".encode()


def write_files(run: Path, round_: int) -> None:
    """What islands leave before the coordinator says that they did."""
    folder = run / folder_of(round_)
    folder.mkdir(parents=True, exist_ok=True)
    for name in NAMES:
        (folder / name).write_bytes(content(name, round_))


def folder_of(round_: int) -> str:
    return f"checkpoint-r{round_:05d}"


def checkpointed(round_: int, *, event_id: int) -> Checkpointed:
    """The event of a checkpoint whose files are those of ``write_files``."""
    return Checkpointed(
        event_id=event_id,
        at_s=float(10 * round_),
        tick=10 * round_,
        round=round_,
        folder=folder_of(round_),
        islands=(0,),
        files=tuple(
            CheckpointFile(
                name=name,
                size_bytes=len(content(name, round_)),
                sha256=hashlib.sha256(content(name, round_)).hexdigest(),
            )
            for name in NAMES
        ),
        took_s=0.5,
    )


def started(event_id: int) -> ArmStarted:
    return ArmStarted(event_id=event_id, at_s=0.0, arm="every", seed=0, islands=(0, 1))


def validated(event_id: int, loss: float = 2.0, *, closing: bool = False) -> Validated:
    return Validated(event_id=event_id, at_s=1.0, round=1, loss=loss, tokens=640, closing=closing)


def merged(event_id: int, round_: int, *hashes: str) -> MergeFinished:
    """One part an island, with its parameter hash after the merge."""
    parts = tuple(
        MergePart(
            island=island,
            round=round_,
            wait_s=0.0,
            codec_s=0.0,
            all_reduce_s=0.1,
            outer_step_s=0.0,
            checkpoint_s=0.0,
            real_s=0.1,
            emulated_s=0.0,
            fill_cpu_s=0.0,
            ended_at_s=1.0,
            weight=1 / len(hashes),
            tokens=320,
            bytes_reduced=0,
            pseudo_gradient_norm=0.5,
            parameter_hash=digest,
            loss=2.0,
        )
        for island, digest in enumerate(hashes)
    )
    return MergeFinished(
        event_id=event_id, cause_id=1, round=round_, at_s=1.0, overran=False, parts=parts
    )


def finished(event_id: int, island: int, digest: str) -> IslandFinished:
    return IslandFinished(
        event_id=event_id,
        at_s=60.0,
        island=island,
        steps=10,
        tokens=320,
        late_steps=0,
        cpu_s=1.0,
        parameter_hash=digest,
        warnings=(),
    )


def rows(first: int, last: int, *, island: int = 0, loss: float = 2.0) -> list[dict[str, Any]]:
    """Inner steps ``first`` to ``last``, each of 32 tokens."""
    return [
        {
            "island": island,
            "round": 0,
            "step": step,
            "at_s": 0.1 * step,
            "loss": loss,
            "tokens": 32,
            "lr": 0.001,
            "step_s": 0.01,
        }
        for step in range(first, last + 1)
    ]


@dataclass(frozen=True, kw_only=True)
class Script:
    """A whole run of three checkpoints: events in order, and rows by the event they precede."""

    run: Path
    rounds: tuple[int, ...] = (1, 2, 3)

    def events(self) -> list[Event]:
        found: list[Event] = [started(1)]
        for round_ in self.rounds:
            found.append(validated(len(found) + 1, 3.0 - 0.1 * round_))
            found.append(checkpointed(round_, event_id=len(found) + 1))
        return [*found, validated(len(found) + 1, closing=True)]

    def play(self, *, keep: int, resume: ResumeFrom | None = None, ends: bool = True) -> None:
        """Write it all, or what is missing after a checkpoint; not ``ends``: killed before."""
        after = 0 if resume is None else resume.checkpoint.event_id
        writer = StepWriter(self.run, keep=keep, after=after)
        if resume is None:
            writer.begin(config=CONFIG, provenance=PROVENANCE)
        for event in self.events():
            if event.event_id > after:
                before: dict[int, list[dict[str, Any]]] = {}
                if isinstance(event, Checkpointed):
                    write_files(self.run, event.round)
                    before = {event.event_id: rows(10 * event.round - 9, 10 * event.round)}
                writer.take([event], before)
        writer.train_rows(rows(31, 35))
        if ends:
            writer.finish("complete", None, 40.0)
