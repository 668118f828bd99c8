"""User policies: one file, one config class, one packaging entry point named like its kind.

    [project.entry-points."lull.policies"]
    my_kind = "my_module:MyConfig"

MyConfig is a FrozenModel with ``kind: Literal["my_kind"]`` and

    def build(self, *, frame: Frame, step_interval_s: float) -> Policy

and may say ``needs_probes: ClassVar[bool] = False`` when a blind sample takes nothing from it.
policies/contract.py holds what the policy has to keep; tests/policies/example_policy.py is one.
Nothing of a plugin is imported before a study names its kind.
"""

import difflib
import json
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Annotated, Any, get_args

from pydantic import (
    Field,
    GetJsonSchemaHandler,
    PlainSerializer,
    PlainValidator,
    SerializationInfo,
    TypeAdapter,
)
from pydantic.json_schema import JsonSchemaValue

from policies.config import PolicyConfig
from policies.frame import Frame
from policies.observation import Policy
from policies.units import FrozenModel

GROUP = "lull.policies"


def built_in_kinds() -> tuple[str, ...]:
    """Kinds of the closed union."""
    return tuple(_literal(model)[0] for model in get_args(get_args(PolicyConfig)[0]))


@cache
def installed() -> dict[str, EntryPoint]:
    """Entry points by kind; ValueError when two take one kind, or one a built-in's."""
    found: dict[str, EntryPoint] = {}
    for point in entry_points(group=GROUP):
        if point.name in built_in_kinds():
            raise ValueError(
                f"policy plugin {describe(point)} takes kind {point.name!r}, which is built in; "
                "give its entry point and kind another name, or uninstall it"
            )
        if point.name in found:
            raise ValueError(
                f"policy kind {point.name!r} is given by two plugins, "
                f"{describe(found[point.name])} and {describe(point)}; uninstall one"
            )
        found[point.name] = point
    return found


def config_class(kind: str) -> type[FrozenModel]:
    """The plugin's config class, imported and checked; ValueError says what is wrong with it."""
    point = installed().get(kind)
    if point is None:
        known = (*built_in_kinds(), *sorted(installed()))
        close = difflib.get_close_matches(kind, known, n=1, cutoff=0.5)
        hint = f"did you mean {close[0]!r}? " if close else ""
        raise ValueError(f"unknown policy kind {kind!r}; {hint}known kinds: {', '.join(known)}")
    try:
        model = point.load()
    except Exception as error:
        line = " ".join(str(error).split())
        raise ValueError(
            f"policy plugin {describe(point)} cannot be imported: {type(error).__name__}: {line}"
        ) from error
    if not (isinstance(model, type) and issubclass(model, FrozenModel)):
        raise ValueError(f"policy plugin {describe(point)} is no subclass of FrozenModel")
    if _literal(model) != (kind,):
        raise ValueError(
            f"policy plugin {describe(point)} has to say kind: Literal[{kind!r}], the name of its "
            "entry point"
        )
    if not callable(getattr(model, "build", None)):
        raise ValueError(
            f"policy plugin {describe(point)} has no method build(*, frame, step_interval_s)"
        )
    return model


def build_plugin(config: FrozenModel, *, frame: Frame, step_interval_s: float) -> Policy:
    """The policy of a plugin's config."""
    build = getattr(config, "build", None)
    if build is None:
        raise ValueError(f"{type(config).__name__} is no policy's config: it has no build")
    policy: Policy = build(frame=frame, step_interval_s=step_interval_s)
    return policy


def plugin_needs_probes(config: FrozenModel) -> bool:
    """A plugin that does not say so is kept from blind samples: it merges only when forced."""
    return bool(getattr(config, "needs_probes", True))


def _literal(model: Any) -> tuple[Any, ...]:
    field = getattr(model, "model_fields", {}).get("kind")
    return () if field is None else get_args(field.annotation)


def describe(point: EntryPoint) -> str:
    """Kind, module and class, and the distribution it came with."""
    owner = f" of {point.dist.name} {point.dist.version}" if point.dist is not None else ""
    return f"{point.name} ({point.value}{owner})"


@cache
def _adapter(model: type[FrozenModel] | None) -> TypeAdapter[Any]:
    """The built-in union, with one plugin's class beside it."""
    if model is None:
        return TypeAdapter(PolicyConfig)
    both: Any = Annotated[PolicyConfig | model, Field(discriminator="kind")]
    return TypeAdapter(both)


def _validate(value: Any) -> Any:
    if isinstance(value, FrozenModel):
        return value
    kind = value.get("kind") if isinstance(value, dict) else None
    installed()  # a plugin that shadows another policy is refused whatever the study names
    foreign = isinstance(kind, str) and kind not in built_in_kinds()
    adapter = _adapter(config_class(str(kind)) if foreign else None)
    # By way of JSON again: in strict mode a list is no tuple anywhere else.
    return adapter.validate_json(json.dumps(value))


def _dump(value: FrozenModel, info: SerializationInfo) -> dict[str, Any]:
    return value.model_dump(mode=info.mode)


class _EveryKind:
    """JSON schema of AnyPolicyConfig: the built-in union and every installed plugin."""

    def __get_pydantic_json_schema__(
        self, schema: Any, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        every: Any = PolicyConfig
        for kind in sorted(installed()):
            every = every | config_class(kind)
        both: Any = Annotated[every, Field(discriminator="kind")]
        return handler(TypeAdapter(both).core_schema)


AnyPolicyConfig = Annotated[
    PolicyConfig | FrozenModel, PlainValidator(_validate), PlainSerializer(_dump), _EveryKind()
]
