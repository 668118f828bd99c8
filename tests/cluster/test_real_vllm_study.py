"""The smallest study with a real vLLM server, real islands and a real trace slice."""

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import yaml

from tests.cluster.studies import ROOT, Lull

pytest.importorskip("ray")
pytest.importorskip("torch")
pytest.importorskip("vllm")
pytestmark = [
    pytest.mark.vllm,
    pytest.mark.ray,
    pytest.mark.slow,
    pytest.mark.usefixtures("nothing_left"),
]


def test_a_study_on_real_vllm_is_recorded_and_judged(lull: Lull, tmp_path: Path) -> None:
    raw = yaml.safe_load((ROOT / "experiments" / "two_minutes" / "study.yaml").read_text())
    raw |= {"study": "real", "seeds": [0]}
    raw["load"]["path"] = str(ROOT / "experiments" / "traces" / "AzureLLMInferenceTrace_code.csv")
    raw["arms"] = [{"kind": "policy", "policy": "wa_ewma"}]
    path = tmp_path / "study.yaml"
    path.write_text(yaml.safe_dump(raw))
    code, output = lull("run", str(path), "--no-track", timeout_s=280)
    assert code == 0, output
    assert "INCONCLUSIVE" in output
    (run,) = (tmp_path / "runs" / "real").glob("wa_ewma-s0-*")
    provenance = json.loads((run / "provenance.json").read_text())
    metrics = json.loads((run / "metrics.json").read_text())
    assert provenance["engine"] == metrics["engine"] == "vllm"
    assert provenance["engine_version"]
    table = pq.read_table(run / "requests.parquet")
    assert table.num_rows == metrics["requests_scheduled_all"] > 0
    assert metrics["requests_ok"] + metrics["requests_failed"] == metrics["requests_scheduled"]
    assert set(table["completion_tokens"].to_pylist()) == {64}
    assert metrics["merge_count"] == 3
    assert metrics["hashes_equal"] is True
    assert metrics["train_loss_end"] < metrics["train_loss_start"]
    assert 0.0 < metrics["merge_emulated_share"] < 1.0
