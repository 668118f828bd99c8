"""A real vLLM server, started once, by an owner that is SIGKILLed at the end.

The tests stand in this order on purpose: a start costs more than a minute.
"""

import importlib.util
import json
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from actors.config import SidecarsConfig
from actors.serving.http import Unreachable, get_json, get_text
from actors.serving.metrics import parse_gauges
from actors.serving.sidecar import Sidecar

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.slow,
    pytest.mark.timeout(420),
    pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed"),
]
READY_S = 300.0

# A process of its own owns the sidecar, and obeys lines on stdin; so that it can be SIGKILLed.
OWNER = """
import dataclasses, json, sys
from pathlib import Path
from actors.config import SidecarsConfig
from actors.serving.sidecar import Sidecar

sidecar = Sidecar(SidecarsConfig.model_validate_json(sys.argv[1]), 0, Path(sys.argv[2]))

def say(what):
    sys.stdout.write(json.dumps(what) + "\\n")
    sys.stdout.flush()

say(dataclasses.asdict(sidecar.start()))
for line in sys.stdin:
    match line.strip():
        case "idle":
            sidecar.wait_idle(10.0)
            say("idle")
        case "alive":
            say(sidecar.alive())
        case "stop":
            sidecar.stop()
            say("stopped")
"""
CONFIG = {
    "count": 1,
    "engine": {
        "kind": "vllm",
        "model": "tiny",
        "max_model_len_tokens": 256,
        "max_num_seqs": 4,
        "start_timeout_s": READY_S,
    },
}


@dataclass
class Owner:
    """The owner's process, and what its sidecar said at the start."""

    process: subprocess.Popen[str]
    info: dict[str, Any]
    folder: Path

    def ask(self, what: str) -> Any:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{what}\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    @property
    def tree(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)


@pytest.fixture(scope="module")
def start(
    tmp_path_factory: pytest.TempPathFactory, checkout: Path
) -> Iterator[Callable[[], Owner]]:
    folder = tmp_path_factory.mktemp("vllm")
    made: list[Owner] = []

    def begin() -> Owner:
        process = subprocess.Popen(
            [sys.executable, "-c", OWNER, json.dumps(CONFIG), str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=checkout,
        )
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, "the owner ended before its server was ready; its error stands above"
        made.append(Owner(process=process, info=json.loads(line), folder=folder))
        return made[-1]

    yield begin
    for owner in made:
        owner.process.kill()
        owner.process.wait()
        for pipe in (owner.process.stdin, owner.process.stdout):
            if pipe is not None:
                pipe.close()


@pytest.fixture(scope="module")
def owner(start: Callable[[], Owner]) -> Owner:
    return start()


def stream(url: str, *, tokens: int) -> list[Any]:
    body = {
        "model": "tiny",
        "prompt": list(range(40, 56)),
        "max_tokens": tokens,
        "min_tokens": tokens,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    request = urllib.request.Request(
        f"{url}/v1/completions",
        data=json.dumps(body).encode(),
        headers={"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=60) as response:
        lines = [line.decode().strip() for line in response if line.strip()]
    events = [line.removeprefix("data: ") for line in lines]
    assert events[-1] == "[DONE]"
    return [json.loads(event) for event in events[:-1]]


def test_it_starts_and_says_what_it_is(owner: Owner) -> None:
    info = owner.info
    assert (info["engine"], info["model"]) == ("vllm", "tiny")
    assert info["engine_version"] == get_json(f"{info['url']}/version")["version"]
    assert info["pid"] in [process.pid for process in owner.tree]
    assert owner.ask("alive") is None


def test_a_stream_has_exactly_24_tokens_by_usage(owner: Owner) -> None:
    *_, last = stream(owner.info["url"], tokens=24)
    assert last["usage"] == {"prompt_tokens": 16, "completion_tokens": 24, "total_tokens": 40}


def test_prompts_are_not_cached_for_a_later_arm(owner: Owner) -> None:
    for _ in range(2):
        stream(owner.info["url"], tokens=1)
    text = get_text(f"{owner.info['url']}/metrics")
    hits = [line for line in text.splitlines() if line.startswith("vllm:prefix_cache_hits_total")]
    assert hits
    assert all(line.endswith(" 0.0") for line in hits)


def test_the_metrics_that_are_needed_are_there_and_idle_is_seen(owner: Owner) -> None:
    gauges = parse_gauges(get_text(f"{owner.info['url']}/metrics"))
    assert gauges.kv_usage >= 0
    assert owner.ask("idle") == "idle"


def test_attached_by_url_it_is_called_vllm(owner: Owner, tmp_path: Path) -> None:
    engine = {"kind": "attach", "url": owner.info["url"], "max_num_seqs": 4}
    config = {"count": 1, "engine": engine | {"max_model_len_tokens": 256}}
    info = Sidecar(SidecarsConfig.model_validate_json(json.dumps(config)), 0, tmp_path).start()
    assert (info.engine, info.engine_version) == ("vllm", owner.info["engine_version"])


def test_an_owner_that_is_sigkilled_leaves_no_process_memory_or_port(
    owner: Owner, watch: Any
) -> None:
    tree = owner.tree
    assert len(tree) >= 5  # two guards, API server, EngineCore, worker
    scratch = Path(psutil.Process(owner.info["pid"]).environ()["TMPDIR"])
    memory = memory_of(tree)
    assert memory, "vLLM is expected to use shared memory: else this test proves nothing"
    assert scratch.is_dir()
    everything = watch([process.pid for process in tree])
    owner.process.kill()
    assert everything.all_gone(60.0)
    assert not [path for path in memory if path.exists()]
    assert not scratch.exists()
    with pytest.raises(Unreachable):
        get_text(f"{owner.info['url']}/health")


def memory_of(tree: list[psutil.Process]) -> list[Path]:
    found = set()
    for process in tree:
        for mapped in process.memory_maps(grouped=False):
            path = Path(mapped.path)
            if path.is_relative_to("/dev/shm") and path.exists():
                found.add(path)
    return sorted(found)
