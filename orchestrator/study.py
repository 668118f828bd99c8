"""YAML on disk to a frozen StudyConfig; every mistake named with its place and a way out."""

import difflib
import json
import re
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

import yaml
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from actors.brief import in_words
from orchestrator.config import StudyConfig
from policies.plugins import config_class, installed
from policies.units import FrozenModel

MOST_FINDINGS = 8  # told of one file


class _Loader(yaml.SafeLoader):
    """SafeLoader that refuses duplicate keys and reads scalars as YAML 1.2 does.

    1e-3 is a number; on, off, yes and no are words.
    """

    yaml_implicit_resolvers = {  # noqa: RUF012 - PyYAML's own class attribute
        first: [(tag, regexp) for tag, regexp in resolvers if not tag.endswith(":bool")]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


def _unique_mapping(loader: _Loader, node: yaml.MappingNode) -> dict[str, Any]:
    seen: dict[str, Any] = {}
    for key_node, value_node in node.value:
        key = loader.construct_object(key_node, deep=True)
        line = key_node.start_mark.line + 1
        if not isinstance(key, str):
            raise ValueError(f"line {line}: a key is {key!r}; keys are words")
        if key in seen:
            raise ValueError(f"line {line}: key {key!r} stands twice; keep one of them")
        seen[key] = loader.construct_object(value_node, deep=True)
    return seen


_Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _unique_mapping)
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:bool", re.compile(r"^(true|True|false|False)$"), list("tTfF")
)
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?[0-9][0-9_]*(\.[0-9]*)?[eE][-+]?[0-9]+$"),
    list("-+0123456789"),
)


def load_study(path: Path) -> StudyConfig:
    """Read and check one study; ValueError names file, key, value and what to do."""
    raw = read_mapping(path, what="a study")
    try:
        return StudyConfig.model_validate_json(json.dumps(raw, default=str))
    except ValidationError as error:
        raise ValueError(explain(error, where=str(path))) from error


def read_mapping(path: Path, *, what: str) -> dict[str, Any]:
    """One YAML (or JSON) file that holds a mapping; ValueError names file and line."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = in_words(error)
        raise ValueError(f"{path}: cannot be read ({why}); give the YAML file of {what}") from error
    try:
        raw = yaml.load(text, Loader=_Loader)
    except yaml.YAMLError as error:
        raise ValueError(f"{path}: is no valid YAML: {_one_line(str(error))}") from error
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    if not isinstance(raw, dict):
        raise ValueError(f"{path}: holds {type(raw).__name__}, not a mapping of the keys of {what}")
    return raw


def explain(error: ValidationError, *, where: str, root: Any = StudyConfig) -> str:
    """Pydantic's findings on a ``root``, one line each: where, what, the value, what to do."""
    items = error.errors(include_url=False)
    if len(items) > MOST_FINDINGS:  # a misspelt key is the cause, one that lacks the consequence
        items.sort(key=lambda item: item["type"] != "extra_forbidden")
    lines = [
        f"{where}: {_place(item['loc'], root)}: {_message(item, root)}"
        for item in items[:MOST_FINDINGS]
    ]
    if len(items) > MOST_FINDINGS:
        lines.append(
            f"{where}: and {len(items) - MOST_FINDINGS} more; is this the file that you meant?"
        )
    return "\n".join(lines)


def _message(item: Any, root: Any) -> str:
    if item["type"] == "extra_forbidden":
        known = _keys_at(item["loc"][:-1], root)
        close = difflib.get_close_matches(str(item["loc"][-1]), known, n=1, cutoff=0.5)
        hint = f"did you mean {close[0]!r}?" if close else f"known keys: {', '.join(known)}"
        return f"unknown key; {hint}"
    if item["type"] == "missing":
        return "is missing; it has no default, so the file has to say it"
    message = str(item["msg"]).removeprefix("Value error, ")
    value = item.get("input")
    if isinstance(value, str | int | float | bool) or value is None:
        return f"{message} (got {value!r})"
    return message


def _place(loc: tuple[int | str, ...], root: Any) -> str:
    """Location as the file has it: without the tags of unions that pydantic puts in."""
    text = ""
    current = _strip(root)
    for part in loc:
        below = _descend(current, part)
        is_tag = get_origin(current) in (Union, UnionType) and below is not current
        current = below
        if is_tag:
            continue
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text or "the file"


def _keys_at(loc: tuple[int | str, ...], root: Any) -> list[str]:
    """Field names of the model at a pydantic location (tags of unions appear in it)."""
    current = _strip(root)
    for part in loc:
        current = _descend(current, part)
    return sorted(current.model_fields) if _is_model(current) else []


def _descend(current: Any, part: int | str) -> Any:
    if _is_model(current) and part in current.model_fields:
        return _strip(current.model_fields[str(part)])
    origin = get_origin(current)
    if origin in (Union, UnionType):
        for member in _members(current):
            if _is_model(member) and "kind" in member.model_fields:
                if part in get_args(member.model_fields["kind"].annotation):
                    return member
        if FrozenModel in get_args(current) and part in installed():  # a user's policy
            return config_class(str(part))
        return current
    if origin in (dict, tuple, list):
        return _strip(get_args(current)[1 if origin is dict else 0])
    return current


def _members(union: Any) -> list[Any]:
    """Models of a union, also of one inside it."""
    found = []
    for member in map(_strip, get_args(union)):
        nested = get_origin(member) in (Union, UnionType)
        found += _members(member) if nested else [member]
    return found


def _strip(annotation: Any) -> Any:
    if isinstance(annotation, FieldInfo):
        annotation = annotation.annotation
    while get_origin(annotation) is Annotated:
        annotation = get_args(annotation)[0]
    if get_origin(annotation) in (Union, UnionType):
        members = [a for a in get_args(annotation) if a is not type(None)]
        return _strip(members[0]) if len(members) == 1 else annotation
    return annotation


def _is_model(current: Any) -> bool:
    return isinstance(current, type) and issubclass(current, BaseModel)


def _one_line(text: str) -> str:
    return " ".join(text.split())
