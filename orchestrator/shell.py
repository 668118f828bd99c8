"""How a command that we print has to be written so that it runs where the reader stands."""

import os
import shlex
import shutil
import sys
from pathlib import Path


def command(name: str, *, python: str | None = None) -> str:
    """``name`` when it is on PATH; else its path beside the interpreter, relative where shorter.

    ``make run`` starts .venv/bin/lull without activating .venv, so its commands are not on PATH.
    """
    if shutil.which(name) is not None:
        return name
    beside = Path(python or sys.executable).absolute().parent / name
    if not beside.is_file():
        return name
    relative = os.path.relpath(beside)
    return shlex.quote(relative if len(relative) < len(str(beside)) else str(beside))
