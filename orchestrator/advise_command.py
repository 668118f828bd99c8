"""`lull advise`: an advisor for trainers of one's own, over HTTP, until it is stopped.

Heavy imports stand inside, as in cli.py.
"""

import asyncio
import contextlib
import ipaddress
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from actors.brief import in_words
from orchestrator.console import JsonOption, OutOption, print_json, say, user_input, warn
from orchestrator.endings import BadInput

if TYPE_CHECKING:
    from orchestrator.advisor.session import AdviceSession

PORT = 8710


def advise(
    advice: Annotated[Path, typer.Argument(help="advice YAML")],
    port: Annotated[int, typer.Option(min=0, max=65_535, help="0: any free one")] = PORT,
    host: Annotated[
        str, typer.Option(help="address to listen at; others than this machine's are unguarded")
    ] = "127.0.0.1",
    out_dir: OutOption = Path("runs"),
    as_json: JsonOption = False,
) -> None:
    """Tell trainers of your own when to merge, over HTTP, until stopped (Ctrl-C).

    They ask with AdvisorClient(url).ready_to_merge(step, progress); the record can be redecided.

    Example: lull advise advice.yaml --port 8710
    """
    from orchestrator.advisor.record import new_folder
    from orchestrator.advisor.session import AdviceSession
    from orchestrator.advisor.setting import load_advice

    with user_input(advice):
        config = load_advice(advice)
    try:
        folder = new_folder(out_dir, config.name)
    except (OSError, ValueError) as error:
        why = in_words(error)
        text = f"--out {out_dir}: cannot be written ({why}); give another folder"
        raise BadInput(text) from error
    with user_input(advice):
        session = AdviceSession(config, folder=folder)
    if not _is_loopback(host):
        warn(f"--host {host}: whoever reaches this address can report; there is no password")

    def ready(url: str) -> None:
        if as_json:
            print_json({"url": url, "record": str(folder), "policy": session.standing().policy})
            sys.stdout.flush()  # who waits for it reads a pipe
            return
        say(f"advising at {url} by {session.standing().policy}; record: {folder}")
        if config.vllm_metrics_url is None:
            say("no server is read (vllm_metrics_url: null): a policy that looks at it stays blind")

    try:
        asyncio.run(_serve(session, host=host, port=port, ready=ready))
    except BaseException as error:
        session.finish(status="partial", why=f"ended by {type(error).__name__}")
        raise
    finally:
        session.finish()
        with contextlib.suppress(OSError):  # nobody asked: nothing stands in it
            folder.rmdir()


async def _serve(
    session: "AdviceSession", *, host: str, port: int, ready: Callable[[str], None]
) -> None:
    """Until SIGINT or SIGTERM, which is how an advice ends well."""
    from orchestrator.advisor.http import serve

    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    try:
        await serve(session, host=host, port=port, stop=stop, ready=ready, say=warn)
    except (OSError, UnicodeError) as error:  # UnicodeError: a host that no name can be
        raise BadInput(
            f"--host {host} --port {port}: cannot listen there ({in_words(error)}); give "
            "another --port (0: any free one) or --host"
        ) from error


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False  # a name, of whatever machine
