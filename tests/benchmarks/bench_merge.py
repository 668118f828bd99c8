"""What a merge costs: all-reduce and outer step, against a copy and Gloo's bare all-reduce.

All in one run, so that the machine's speed cancels: K processes of one thread each, told to begin
together, best of the repeats. ``bound`` is 1.2 * (bare all-reduce + bytes that the outer step has
to move / copy bandwidth); on one host a merge should be below the bare all-reduce itself. Memory is
the proportional set size over all processes, sampled while a merge runs, less what stood before.
Run it by `make bench-merge`.
"""

import argparse
import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PEER = Path(__file__).with_name("merge_peer.py")
QUICKSTART = ROOT / "experiments" / "quickstart" / "study.yaml"
# Passes over the vector that an outer step makes after a network's all-reduce, read or write:
# measure 3, momentum 3, step 3, new parameters into the model 2. A copy makes 2.
OUTER_PASSES = 11
CASES = ((10, 2), (10, 4), (100, 2), (100, 4), (400, 2))  # millions of parameters, islands


class Team:
    """K peers that do the same at once."""

    def __init__(self, count: int, numbers: int) -> None:
        self.count, self.numbers = count, numbers
        self.peers = [
            subprocess.Popen(
                [sys.executable, str(PEER), str(i), str(count), str(numbers), str(QUICKSTART)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                cwd=ROOT,
            )
            for i in range(count)
        ]
        for peer in self.peers:
            self._answer(peer)
        self.epoch = 0
        self.fragments = 1
        self.rounds = 0

    def call(self, name: str, *args: Any) -> list[dict[str, Any]]:
        for peer in self.peers:
            self._tell(peer, name, *args)
        return [self._answer(peer) for peer in self.peers]

    def _tell(self, peer: "subprocess.Popen[str]", name: str, *args: Any) -> None:
        assert peer.stdin is not None
        peer.stdin.write(json.dumps([name, *args]) + "\n")
        peer.stdin.flush()

    def _answer(self, peer: "subprocess.Popen[str]") -> dict[str, Any]:
        assert peer.stdout is not None
        line = peer.stdout.readline()
        if not line:
            raise RuntimeError(f"a peer ended with {peer.wait()}")
        told: dict[str, Any] = json.loads(line)
        return told

    def form(self, transport: str, *, codec: str = "fp32", fragments: int = 1) -> None:
        self.epoch += 1
        self.fragments = fragments
        told = self.call("introduce")
        segments = [one["segment"] for one in told]
        port = told[0]["port"]
        shared = transport == "shared_memory"
        args = (transport, codec, fragments, self.epoch, segments if shared else [])
        if not shared:
            self.call("form", *args, None, port)
            return
        leader, *others = self.peers
        self._tell(leader, "form", *args, None, port)
        banks = self._answer(leader)["banks"]
        for peer in others:
            self._tell(peer, "form", *args, banks, port)
        for peer in others:
            self._answer(peer)

    def merge(self, *, fragment: int = 0) -> dict[str, Any]:
        """Seconds of reduce and commit, as the slowest has them, and what was sent."""
        self.rounds += 1
        self.call("drift", self.rounds)
        began_s = time.perf_counter()
        told = self.call("reduce", self.rounds, fragment)
        committed = self.call("commit")
        took_s = time.perf_counter() - began_s
        alike = len({one["sum"] for one in committed}) == 1
        assert alike or self.fragments > 1, "islands differ after a merge"
        return {
            "seconds": took_s,
            "bytes": told[0]["bytes"],
            "codec_s": max(one["codec_s"] for one in told),
            "codec_error": told[0]["codec_error"],
        }

    def best(self, *, repeats: int, fragment: int = 0) -> dict[str, Any]:
        self.merge(fragment=fragment)  # pages and connections are there
        runs = [self.merge(fragment=fragment) for _ in range(repeats)]
        return min(runs, key=lambda run: float(run["seconds"]))

    def slowest(self, name: str, *, repeats: int) -> float:
        """Best over repeats of the slowest peer."""
        return min(max(float(one["seconds"]) for one in self.call(name)) for _ in range(repeats))

    def memory_bytes(self) -> int:
        return sum(_pss_bytes(peer.pid) for peer in self.peers)

    @contextmanager
    def peak(self) -> Iterator[list[int]]:
        """Largest memory of all peers together in here, into the list."""
        found, stop = [self.memory_bytes()], threading.Event()

        def sample() -> None:
            while not stop.wait(0.005):
                found.append(self.memory_bytes())

        thread = threading.Thread(target=sample)
        thread.start()
        try:
            yield found
        finally:
            stop.set()
            thread.join()

    def close(self) -> None:
        self.call("close")
        for peer in self.peers:
            peer.wait(30)


def _pss_bytes(pid: int) -> int:
    """Shared pages count once over all processes."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"process {pid}: the kernel tells no proportional set size")


def measure(millions: int, count: int, *, repeats: int, codecs: bool) -> list[dict[str, Any]]:
    """The rows of one size and number of islands."""
    numbers = millions * 1_000_000
    model_bytes = 4 * numbers
    team = Team(count, numbers)
    rows = []
    try:
        before_bytes = team.memory_bytes()
        copy_s = team.slowest("copy", repeats=repeats)

        def row(what: str, run: dict[str, Any], peak_bytes: int, gloo_s: float) -> dict[str, Any]:
            bound_s = 1.2 * (gloo_s + OUTER_PASSES / 2 * copy_s)
            return {
                "parameters_millions": millions,
                "islands": count,
                "what": what,
                "seconds": run["seconds"],
                "bytes_per_s": model_bytes / run["seconds"],
                "of_bare_all_reduce": run["seconds"] / gloo_s,
                "of_copy": run["seconds"] / copy_s,
                "of_bound": run["seconds"] / bound_s,
                "sent_bytes": run["bytes"],
                "codec_s": run["codec_s"],
                "codec_error": run["codec_error"],
                "extra_memory_models": (peak_bytes - before_bytes) / count / model_bytes,
            }

        team.form("network")
        gloo_s = team.slowest("gloo", repeats=repeats)
        with team.peak() as peak:
            run = team.best(repeats=repeats)
        rows.append(row("network fp32", run, max(peak), gloo_s))
        for codec in ("bf16", "int8") if codecs else ():
            team.form("network", codec=codec)
            with team.peak() as peak:
                run = team.best(repeats=repeats)
            rows.append(row(f"network {codec}", run, max(peak), gloo_s))
        for fragments in (1, 4, 8):
            team.form("shared_memory", fragments=fragments)
            with team.peak() as peak:
                run = team.best(repeats=repeats)
            what = "shared memory" if fragments == 1 else f"shared memory, 1 of {fragments}"
            rows.append(row(what, run, max(peak), gloo_s))
        for fragments in (4, 8):
            team.form("network", fragments=fragments)
            with team.peak() as peak:
                run = team.best(repeats=repeats)
            rows.append(row(f"network fp32, 1 of {fragments}", run, max(peak), gloo_s))
        base = {"parameters_millions": millions, "islands": count}
        rows.append({**base, "what": "copy", "seconds": copy_s})
        rows.append({**base, "what": "bare all-reduce (gloo)", "seconds": gloo_s})
    finally:
        team.close()
    return rows


def line_of(row: dict[str, Any]) -> str:
    head = f"{row['parameters_millions']:4d} M x {row['islands']}  {row['what']:26s}"
    head += f" {1000 * row['seconds']:9.1f} ms"
    if "of_copy" not in row:
        return head
    error = "" if row["codec_error"] is None else f"  error {row['codec_error']:.2e}"
    return (
        f"{head} {row['bytes_per_s'] / 1e9:6.2f} GB/s  {row['of_bare_all_reduce']:5.2f} x bare "
        f"all-reduce  {row['of_bound']:5.2f} of the bound  {row['of_copy']:6.2f} x copy  "
        f"+{row['extra_memory_models']:.2f} models{error}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--only", type=int, help="millions of parameters")
    parser.add_argument("--json", type=Path, help="write the rows there too")
    options = parser.parse_args()
    rows = []
    for millions, count in CASES:
        if options.only in (None, millions):
            # 400 M in int8 with its feedback would not fit beside the rest in 24 GB.
            for row in measure(millions, count, repeats=options.repeats, codecs=millions < 400):
                rows.append(row)
                sys.stdout.write(line_of(row) + "\n")
                sys.stdout.flush()
    if options.json is not None:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
