"""What every command of the command line shares: options, errors of the user, how it speaks.

`--json` owns stdout; warnings and errors go to stderr.
"""

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from actors.brief import in_words
from orchestrator.endings import BadInput

out = Console(soft_wrap=True)
err = Console(stderr=True, soft_wrap=True)

StudyArg = Annotated[Path, typer.Argument(help="study YAML")]
StudyRunArg = Annotated[Path, typer.Argument(help="study run folder, e.g. runs/quickstart")]
OutOption = Annotated[Path, typer.Option("--out", help="folder that holds the study runs")]
MOST_WORKERS = 10_000
JsonOption = Annotated[bool, typer.Option("--json", help="one JSON object for machines")]


@contextmanager
def user_input(where: Path, *others: Path) -> Iterator[None]:
    """A ValueError in here speaks of the user's input; anywhere else it is a bug of ours.

    It is put under the first file, unless it begins with one of the files itself.
    """
    try:
        yield
    except ValueError as error:
        text = str(error)
        named = text.startswith(tuple(map(str, (where, *others))))
        raise BadInput(text if named else f"{where}: {text}") from error


def at_most(option: str, value: int | None, *, most: int) -> None:
    """BadInput for a number that no machine could list; typer's own words leave the value out."""
    if value is not None and value > most:
        raise BadInput(f"{option} {value}: is above {most}, the most that is taken; give fewer")


def check_output(option: str, path: Path) -> None:
    """Before the work: BadInput for a file that cannot be written; its folder is made."""
    if os.path.isdir(path):  # noqa: PTH112 - Path.is_dir raises at a name that is too long
        raise BadInput(f"{option} {path}: is a folder; give the file to write in it")
    try:
        probe = path.with_name(path.name + ".tmp")
        path.parent.mkdir(parents=True, exist_ok=True)
        probe.touch()
        probe.unlink()
    except (OSError, ValueError) as error:
        why = in_words(error)
        raise BadInput(f"{option} {path}: cannot be written ({why}); give another file") from error


def print_json(value: Any) -> None:
    """One object on stdout."""
    from orchestrator.finish import to_json

    sys.stdout.write(json.dumps(to_json(value), indent=2, allow_nan=False) + "\n")


def say(line: str) -> None:
    """A line of the result."""
    out.print(line, highlight=False, markup=False)


def warn(line: str) -> None:
    """A line beside the result."""
    err.print(f"lull: {line}", highlight=False, markup=False)
