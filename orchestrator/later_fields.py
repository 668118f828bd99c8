"""Settings that came after records were made: at their defaults they are left out of a run's hash.

So a record keeps its name and can be judged, reused and resumed by a newer version.
"""

from functools import cache
from typing import Any

from pydantic import BaseModel, TypeAdapter

from actors.config import (
    InnerConfig,
    IslandsConfig,
    MergeConfig,
    OuterConfig,
)
from orchestrator.config import StudyConfig

_LATER: tuple[tuple[tuple[str, ...], type[BaseModel], tuple[str, ...]], ...] = (
    ((), StudyConfig, ("clock", "training")),
    (("islands",), IslandsConfig, ("replicas", "shards", "elastic", "faults")),
    (("islands", "inner"), InnerConfig, ("schedule",)),
    (
        ("islands", "outer"),
        OuterConfig,
        ("kind", "clip_norm", "weighting", "staleness_half_life_rounds"),
    ),
    (
        ("merge",),
        MergeConfig,
        (
            *("transport", "fragments", "overlap_steps", "overlap_mixing", "outer_on"),
            *("checkpoint_content", "checkpoint_every_merges", "checkpoint_keep"),
            "checkpoint_in_background",
        ),
    ),
)


def without_later_defaults(what: dict[str, Any]) -> None:
    """Take them out of a dumped study, in place."""
    for path, model, names in _LATER:
        holder = what
        for key in path:
            holder = holder[key]
        for name in names:
            if name in holder and holder[name] == _default(model, name):
                del holder[name]


@cache
def _default(model: type[BaseModel], name: str) -> Any:
    """As a study is dumped: lists for tuples, objects for models."""
    field = model.model_fields[name]
    return TypeAdapter(Any).dump_python(field.get_default(call_default_factory=True), mode="json")
