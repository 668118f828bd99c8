"""How large the working directory is that Ray would upload, and a refusal before the upload fails.

Follows Ray 2.60 (``ray/_private/runtime_env/packaging.py``): default excludes, then ``.gitignore``
and ``.rayignore`` of every folder on the way down; what is left goes into a zip, uncompressed.
"""

import os
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

from pathspec import PathSpec

LIMIT_BYTES = 100 * 1024**2  # the dashboard refuses a larger upload (DASHBOARD_CLIENT_MAX_SIZE)
DEFAULT_EXCLUDES = ".git,.venv,venv,__pycache__"
ZIP_ENTRY_BYTES = 30 + 46  # a local header and a central one, each with the name besides
ZIP_END_BYTES = 22

Rule = tuple[Path, PathSpec]


def working_dir_bytes(folder: Path, *, environ: Mapping[str, str] = os.environ) -> int:
    """Size of the zip that Ray makes of ``folder``."""
    return ZIP_END_BYTES + sum(size for _, size in uploaded(folder, environ=environ))


def check_working_dir(
    folder: Path, *, limit_bytes: int = LIMIT_BYTES, environ: Mapping[str, str] = os.environ
) -> int:
    """The upload's size in bytes; ValueError when it is above the limit."""
    entries = list(uploaded(folder, environ=environ))
    total_bytes = ZIP_END_BYTES + sum(size for _, size in entries)
    if total_bytes > limit_bytes:
        raise ValueError(
            f"{folder}: the working directory takes {_mib(total_bytes)}, above the limit of "
            f"{_mib(limit_bytes)}; largest: {_largest(entries)}; list what a cluster does not need "
            "in .rayignore"
        )
    return total_bytes


def uploaded(
    folder: Path, *, environ: Mapping[str, str] = os.environ
) -> Iterator[tuple[Path, int]]:
    """Each entry of the zip, relative to ``folder``, and its bytes there."""
    root = folder.absolute()
    if not root.is_dir():
        raise ValueError(f"{folder} is no folder; give the root of the checkout")
    # The two variables are Ray's own: they change what Ray uploads, so they change its size.
    excludes = environ.get("RAY_OVERRIDE_RUNTIME_ENV_DEFAULT_EXCLUDES", DEFAULT_EXCLUDES)
    names = [name.strip() for name in excludes.split(",")]
    ignore_files = [".rayignore"]
    if environ.get("RAY_RUNTIME_ENV_IGNORE_GITIGNORE", "0") != "1":
        ignore_files.insert(0, ".gitignore")
    for path in _kept(root, [(root, PathSpec.from_lines("gitignore", names))], ignore_files):
        name = path.relative_to(root)
        in_zip_bytes = ZIP_ENTRY_BYTES + 2 * len(os.fsencode(name))
        if path.is_file():
            yield name, in_zip_bytes + path.stat().st_size
        elif path != root and path.is_dir() and next(path.iterdir(), None) is None:
            yield name, in_zip_bytes + 2  # the name ends in a slash, twice


def _kept(path: Path, rules: list[Rule], ignore_files: list[str]) -> Iterator[Path]:
    """``path`` and all below it that no rule leaves out; a folder's own rules count for it too."""
    own = [path / name for name in ignore_files if (path / name).is_file()]
    rules = rules + [
        (path, PathSpec.from_lines("gitignore", file.read_text().splitlines())) for file in own
    ]
    if any(spec.match_file(str(path.relative_to(base))) for base, spec in rules):
        return
    yield path
    if path.is_dir():
        for below in sorted(path.iterdir()):
            yield from _kept(below, rules, ignore_files)


def _largest(entries: list[tuple[Path, int]], *, count: int = 3) -> str:
    """The largest entries of the top level, each with its largest file."""
    totals: Counter[str] = Counter()
    largest: dict[str, tuple[int, Path]] = {}
    for path, size in entries:
        top = path.parts[0]
        totals[top] += size
        largest[top] = max(largest.get(top, (0, path)), (size, path))
    return ", ".join(
        f"{top} {_mib(size)}"
        + (
            ""
            if largest[top][1] == Path(top)
            else f" (with {largest[top][1]} {_mib(largest[top][0])})"
        )
        for top, size in totals.most_common(count)
    )


def _mib(size_bytes: int) -> str:
    return f"{size_bytes / 1024**2:.1f} MiB"
