"""Is a study that which its plant was fitted for? Same server, length of windows, load in them.

The slow-down of a merge is fitted as one of steps, at any time of a window; what it becomes in
longer ones, or beside another load, nobody measured.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from orchestrator.config import StudyConfig
from orchestrator.replay.calibrated import Calibration

_NO_SPEED = ("kind", "url", "port", "start_timeout_s", "max_model_len_tokens", "max_num_seqs")
_FILL = ("threads", "core_fraction", "matrix_size")
_SAME_ENGINE = {"attach": "vllm"}  # a server that somebody else started is one all the same
_ABSENT = object()


@dataclass(frozen=True, slots=True, kw_only=True)
class Unlike:
    """What differs, with both values; and what one of the two does not state."""

    differing: tuple[str, ...]
    unknown: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pair:
    """One fact: ``fitted`` and ``asked`` as words say them; _ABSENT where it is not stated."""

    name: str
    fitted: Any
    asked: Any
    words: str  # with {fitted} and {asked}


def server_settings(study: StudyConfig) -> dict[str, Any]:
    """Settings of the study's engine that its speed hangs on; slots stand in the plant."""
    engine = study.sidecars.engine.model_dump(mode="json")
    return {key: value for key, value in engine.items() if key not in _NO_SPEED}


def unlike(study: StudyConfig, calibration: Calibration) -> Unlike:
    """Where the study is another one than the plant was fitted for; nothing for bare numbers."""
    pairs = list(_pairs(study, calibration))
    return Unlike(
        differing=tuple(
            p.words.format(fitted=p.fitted, asked=p.asked)
            for p in pairs
            if _ABSENT not in (p.fitted, p.asked) and p.fitted != p.asked
        ),
        unknown=tuple(p.name for p in pairs if _ABSENT in (p.fitted, p.asked)),
    )


def _pairs(study: StudyConfig, calibration: Calibration) -> Iterator[_Pair]:
    fitted = calibration.fitted_on
    if fitted is None:
        return
    kind: str = study.sidecars.engine.kind
    yield _Pair(
        name="engine",
        fitted=fitted.engine,
        asked=_SAME_ENGINE.get(kind, kind),
        words="fitted on engine={fitted}, this study's is {asked}",
    )
    yield _Pair(
        name="max_num_seqs",
        fitted=calibration.plant.slots,
        asked=study.sidecars.engine.max_num_seqs,
        words="fitted on {fitted} slots, this study's max_num_seqs is {asked}",
    )
    yield _Pair(
        name="window_s",
        fitted=f"{fitted.window_s:g}",
        asked=f"{study.merge.window_s:g}",
        words="fitted on windows of {fitted} s, this study's are {asked} s",
    )
    yield from _server(study, fitted.server)
    yield _counted("sidecars", fitted.sidecars, study.sidecars.count)
    yield _counted("islands", fitted.islands, study.islands.count)
    yield from _fill(study, fitted.fill)


def _server(study: StudyConfig, fitted: dict[str, Any] | None) -> Iterator[_Pair]:
    """Model and what else sets the engine's speed; no model named is one unknown."""
    then, now = {"model": None} if fitted is None else fitted, server_settings(study)
    for key in dict.fromkeys((*then, *(now if fitted is not None else ()))):
        yield _Pair(
            name=key,
            fitted=_stated(then, key),
            asked=_stated(now, key),
            words=f"fitted on {key} {{fitted}}, this study's is {{asked}}",
        )


def _stated(settings: dict[str, Any], key: str) -> Any:
    value = settings.get(key, _ABSENT)
    return _ABSENT if key == "model" and value is None else value


def _counted(name: str, fitted: int | None, asked: int) -> _Pair:
    return _Pair(
        name=name,
        fitted=_ABSENT if fitted is None else fitted,
        asked=asked,
        words=f"fitted beside {{fitted}} {name}, this study has {{asked}}",
    )


def _fill(study: StudyConfig, fitted: dict[str, Any]) -> Iterator[_Pair]:
    now = study.merge.fill.model_dump(mode="json")
    kinds = fitted.get("kind", _ABSENT), now["kind"]
    yield _Pair(
        name="fill.kind",
        fitted=kinds[0],
        asked=kinds[1],
        words="fitted on fill {fitted}, this study's is {asked}",
    )
    if kinds == ("none", "none"):
        return
    for key in _FILL if kinds[0] == kinds[1] else ():
        yield _Pair(
            name=f"fill.{key}",
            fitted=fitted.get(key, _ABSENT),
            asked=now[key],
            words=f"fitted on a fill of {key} {{fitted}}, this study's is {{asked}}",
        )
