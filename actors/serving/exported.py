"""A folder with the islands' weights for a server: written whole, and read with suspicion.

Beside a Hugging Face Llama stands MANIFEST: of which merge the weights are, the size of each file,
and a probe, which is what a server must answer that really serves them.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError
from safetensors import SafetensorError, safe_open

from actors.serving.llama_folder import WEIGHTS, LlamaShape, as_json, new_folder, text_files
from policies.units import FrozenModel

MANIFEST = "lull.json"
INITIAL_ROUND = -1  # weights that no merge has touched
_FIRST_BYTE, _MOST_TOKENS = 32, 64  # printable ASCII: bytes that any text has trained


class NotExported(ValueError):
    """No whole folder of exported weights; says what is wrong with it."""


class Probe(FrozenModel):
    """Log-probability (nats) of every token after ``prompt``, by the exported weights."""

    prompt: tuple[int, ...]
    logprobs: tuple[float, ...]  # [vocab_size]


class _Manifest(FrozenModel):
    format: Literal[1]
    round: int
    file_bytes: dict[str, int]
    probe: Probe


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """A whole folder of exported weights."""

    folder: Path
    round: int  # of the merge that made them; INITIAL_ROUND before any
    weights_bytes: int
    config: dict[str, Any]
    tensors: dict[str, tuple[str, tuple[int, ...]]]  # name: type and shape, as stored
    probe: Probe


def round_folder(folder: Path, round_: int) -> Path:
    """Where the weights of merge ``round_`` stand below ``folder``."""
    return folder / ("round-initial" if round_ == INITIAL_ROUND else f"round-{round_:05d}")


def probe_prompt(max_len_tokens: int) -> tuple[int, ...]:
    """Token ids that fit into the context with room for an answer."""
    if max_len_tokens < 2:
        raise ValueError(
            f"max_len_tokens={max_len_tokens} leaves no room for a prompt; give at least 2"
        )
    return tuple(range(_FIRST_BYTE, _FIRST_BYTE + min(_MOST_TOKENS, max_len_tokens - 1)))


def write_exported(
    target: Path, shape: LlamaShape, probe: Probe, *, round_: int, save: Callable[[Path], None]
) -> None:
    """Make ``target``, or put a new one in its place; ``save`` writes the weights to a path."""
    with new_folder(target, replace=True) as made:
        for name, data in text_files(shape).items():
            (made / name).write_bytes(data)
        save(made / WEIGHTS)
        sizes = {path.name: path.stat().st_size for path in made.iterdir()}
        manifest = _Manifest(format=1, round=round_, file_bytes=sizes, probe=probe)
        (made / MANIFEST).write_bytes(as_json(manifest.model_dump(mode="json")))


def read_exported(folder: Path) -> Exported:
    """What stands in ``folder``; NotExported where a file is missing, cut off or of another time.

    Sizes and the list of tensors are checked, not each byte: what a server makes of the weights is
    proved by the probe afterwards.
    """
    folder = folder.resolve()
    try:
        manifest = _Manifest.model_validate_json((folder / MANIFEST).read_bytes())
        _check_sizes(folder, manifest.file_bytes)
        config = json.loads((folder / "config.json").read_bytes())
        tensors = _tensors(folder / WEIGHTS)
    except FileNotFoundError as error:
        raise NotExported(
            f"{folder}: no {MANIFEST} with the weights of a merge there (on this node)"
        ) from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise NotExported(f"{folder / MANIFEST}: {where or 'file'}: {first['msg']}") from error
    except (OSError, json.JSONDecodeError, SafetensorError) as error:
        raise NotExported(f"{folder}: cannot be read: {error}") from error
    return Exported(
        folder=folder,
        round=manifest.round,
        weights_bytes=manifest.file_bytes[WEIGHTS],
        config=config,
        tensors=tensors,
        probe=manifest.probe,
    )


def _check_sizes(folder: Path, sizes: dict[str, int]) -> None:
    if WEIGHTS not in sizes:
        raise NotExported(f"{folder / MANIFEST}: file_bytes does not list {WEIGHTS}")
    for name, size_bytes in sizes.items():
        path = folder / name
        found = path.stat().st_size if path.is_file() else None
        if found != size_bytes:
            raise NotExported(
                f"{path}: {'missing' if found is None else f'{found} bytes'}, where {MANIFEST} "
                f"lists {size_bytes} bytes; the folder is not whole"
            )


def _tensors(path: Path) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Type and shape of each tensor, from the header; it has to cover the file exactly."""
    with safe_open(path, framework="numpy") as weights:
        slices = {name: weights.get_slice(name) for name in weights.keys()}
        return {name: (s.get_dtype(), tuple(s.get_shape())) for name, s in slices.items()}
