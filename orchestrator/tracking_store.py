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
def one_writer(uri: str, study_dir: Path) -> Iterator[None]:
    """Queue for the database file, or for the study where a server owns the database.

    A fresh SQLite file that several processes open at once stays broken, so none opens it alone.
    """
    database = sqlite_file(uri)
    path = study_dir / ".track.lock" if database is None else Path(f"{database}.lock")
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
