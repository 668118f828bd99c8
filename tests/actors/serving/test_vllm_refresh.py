"""A real vLLM server takes the islands' weights in place; started once, the tests in this order."""

import importlib.util
import json
import threading
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import torch

from actors.config import ModelConfig, SidecarsConfig
from actors.island.export import export_checkpoint
from actors.island.model import build_model
from actors.serving.http import ask_json, get_json
from actors.serving.llama_folder import WEIGHTS
from actors.serving.refresh import RefreshRefused
from actors.serving.sidecar import Sidecar, SidecarInfo

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.slow,
    pytest.mark.timeout(420),
    pytest.mark.filterwarnings("default"),  # another library's own
    pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed"),
]
MODEL = ModelConfig(hidden_size=64, layers=2, heads=2, kv_heads=1, ffn_size=96)
CONTEXT_TOKENS = 3072
CONFIG = {
    "count": 1,
    "engine": {
        "kind": "vllm",
        "model": "islands",
        "max_model_len_tokens": CONTEXT_TOKENS,
        "max_num_seqs": 4,
        "start_timeout_s": 300.0,
    },
    "refresh": {"kind": "in_place"},
}
PROMPT = [ord(letter) for letter in "the quick brown fox"]
ANSWER_TOKENS = 24
LONG_TOKENS = 3000  # a request that is in flight for seconds, on a busy machine too


@dataclass(frozen=True)
class Served:
    sidecar: Sidecar
    info: SidecarInfo
    folders: list[Path]  # of rounds 0, 1 and 2


def export(folder: Path, round_: int) -> Path:
    """Weights that answer clearly, so that no greedy choice hangs on a rounding error."""
    model = build_model(MODEL, seed=round_, max_len_tokens=8)
    generator = torch.Generator().manual_seed(round_)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.2)
    return export_checkpoint(
        dict(model.named_parameters()),
        MODEL,
        folder,
        round_=round_,
        max_len_tokens=CONTEXT_TOKENS,
        keep=3,
    )


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("refresh")
    folders = [export(folder / "served", round_) for round_ in range(3)]
    sidecar = Sidecar(SidecarsConfig.model_validate_json(json.dumps(CONFIG)), 0, folder / "work")
    try:
        yield Served(sidecar=sidecar, info=sidecar.start(folders[0]), folders=folders)
    finally:
        sidecar.stop()


def body(*, tokens: int, stream: bool) -> dict[str, Any]:
    return {
        "model": "islands",
        "prompt": PROMPT,
        "max_tokens": tokens,
        "temperature": 0.0,
        "ignore_eos": True,
        "stream": stream,
    }


def answered(url: str) -> list[int]:
    """The server's greedy continuation of the prompt."""
    asked = body(tokens=ANSWER_TOKENS, stream=False) | {"return_token_ids": True}
    choice = ask_json(f"{url}/v1/completions", asked, timeout_s=60.0)["choices"][0]
    ids: list[int] = choice["token_ids"]
    return ids


def expected(folder: Path) -> list[int]:
    """Transformers' greedy continuation of the prompt by the weights in the folder."""
    transformers: Any = pytest.importorskip("transformers")
    model = transformers.LlamaForCausalLM.from_pretrained(str(folder)).float().eval()
    ids = list(PROMPT)
    with torch.no_grad():
        for _ in range(ANSWER_TOKENS):
            ids.append(int(model(torch.tensor([ids])).logits[0, -1].argmax()))
    return ids[len(PROMPT) :]


def streamed_tokens(url: str, begun: threading.Event) -> int:
    """Tokens of a long request by the server's own count; ``begun`` once the first has come."""
    asked = body(tokens=LONG_TOKENS, stream=True) | {"stream_options": {"include_usage": True}}
    request = urllib.request.Request(
        f"{url}/v1/completions",
        data=json.dumps(asked).encode(),
        headers={"Content-Type": "application/json"},
    )
    usage = None
    with urllib.request.urlopen(request, timeout=120) as response:
        for line in response:
            text = line.decode().strip().removeprefix("data: ")
            if text in ("", "[DONE]"):
                continue
            begun.set()
            usage = json.loads(text).get("usage") or usage
    assert usage is not None
    return int(usage["completion_tokens"])


def test_it_serves_the_weights_that_it_was_started_on(served: Served) -> None:
    assert served.info.model == "islands"
    assert answered(served.info.url) == expected(served.folders[0])


def test_new_weights_in_place_and_a_request_in_flight_survives(served: Served) -> None:
    url, begun = served.info.url, threading.Event()
    with ThreadPoolExecutor(max_workers=1) as pool:
        flying = pool.submit(streamed_tokens, url, begun)
        assert begun.wait(60.0)
        assert not flying.done()
        done = served.sidecar.refresh(served.folders[1], 1)
        assert flying.result(120.0) == LONG_TOKENS
    assert (done.kind, done.round) == ("in_place", 1)
    assert done.proof.conclusive
    assert done.proof.tokens >= 20
    assert 0 < done.outage_s <= done.ended_at_s - done.started_at_s < 30
    assert get_json(f"{url}/weight_info") == {"weight_version": "round-00001"}
    assert answered(url) == expected(served.folders[1]) != expected(served.folders[0])
    assert served.sidecar.alive() is None


def test_a_half_written_folder_never_reaches_the_server(served: Served) -> None:
    weights = served.folders[2] / WEIGHTS
    whole = weights.read_bytes()
    weights.write_bytes(whole[: len(whole) // 2])
    before = answered(served.info.url)
    with pytest.raises(RefreshRefused, match="not whole"):
        served.sidecar.refresh(served.folders[2], 2)
    assert answered(served.info.url) == before
    weights.write_bytes(whole)
    assert before != expected(served.folders[2])
    assert served.sidecar.refresh(served.folders[2], 2).proof.conclusive
    assert answered(served.info.url) == expected(served.folders[2])
