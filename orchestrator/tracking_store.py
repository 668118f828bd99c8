"""Where the MLflow mirror lies, and the lock that lets one process at a time write there."""

import fcntl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

LOCK_TIMEOUT_S = 300.0


def default_uri(study_dir: Path) -> str:
    return f"sqlite:///{study_dir.parent / 'mlflow.db'}"


def sqlite_file(uri: str) -> Path | None:
    """The database file of an SQLite URI; None for servers and other stores."""
    if not uri.startswith("sqlite:///"):
        return None
    name = uri.removeprefix("sqlite:///").partition("?")[0]
    return Path(name).resolve() if name and name != ":memory:" else None


def without_password(uri: str) -> str:
    """The URI as it may be shown."""
    parts = urlsplit(uri)
    if "@" not in parts.netloc:
        return uri
    return urlunsplit(parts._replace(netloc=f"***@{parts.netloc.rpartition('@')[2]}"))


@contextmanager
def hold(path: Path) -> Iterator[None]:
    """One process at a time; others wait. The system frees the lock of a process that dies."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as handle:
        give_up_at_s = time.monotonic() + LOCK_TIMEOUT_S
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError as error:
                if time.monotonic() > give_up_at_s:
                    raise TimeoutError(
                        f"another process has held {path} for {LOCK_TIMEOUT_S:.0f} s"
                    ) from error
                time.sleep(0.1)
        yield


@contextmanager
def one_writer(uri: str) -> Iterator[None]:
    """Queue for an SQLite file; a server queues for itself.

    A fresh file that several processes open at once stays broken, so none opens it alone.
    """
    database = sqlite_file(uri)
    if database is None:
        yield
        return
    with hold(Path(f"{database}.lock")):
        yield
