"""Settings that came after records were made: at their defaults a study keeps the hash it had."""

import hashlib
import json
from collections.abc import Callable
from typing import Any

import pytest

from orchestrator.arms import expand_arms
from orchestrator.config import StudyConfig
from orchestrator.records import ArmSpec
from orchestrator.rundir import run_hash

MakeStudy = Callable[..., StudyConfig]
# What was hashed of the synthetic study before islands had an engine of their own: every key that
# a record of then holds, written out by hand.
OF_OLD: dict[str, Any] = {
    "islands": {
        "count": 2,
        "model": {
            "hidden_size": 32,
            "layers": 1,
            "heads": 2,
            "kv_heads": 2,
            "ffn_size": 64,
            "vocab_size": 260,
            "rope_theta": 10000.0,
            "tie_embeddings": True,
        },
        "data": {"source": "stdlib", "folder": None, "max_bytes": 64000000},
        "inner": {
            "lr": 0.001,
            "beta1": 0.9,
            "beta2": 0.95,
            "weight_decay": 0.1,
            "clip_norm": 1.0,
        },
        "outer": {"lr": 0.7, "momentum": 0.9},
        "batch_size": 2,
        "seq_len_tokens": 16,
        "step_interval_s": 0.1,
        "device": "cpu",
        "torch_threads": 1,
        "autogroup_nice": 0,
        "num_cpus": 1.0,
        "num_gpus": 0.0,
    },
    "merge": {
        "window_s": 4.0,
        "fill": {"kind": "matmul", "threads": 1, "matrix_size": 384, "core_fraction": None},
        "codec": "fp32",
        "checkpoint": True,
        "timeout_s": 30.0,
    },
}


def policy_arm(study: StudyConfig) -> ArmSpec:
    return next(arm for arm in expand_arms(study) if arm.kind == "policy")


def hash_of(study: StudyConfig) -> str:
    return run_hash(study, policy_arm(study))


def hashed(study: StudyConfig, monkeypatch: pytest.MonkeyPatch) -> tuple[dict[str, Any], str]:
    """What goes into the hash, and the hash."""
    seen: list[dict[str, Any]] = []
    dumps = json.dumps

    def kept(what: Any, **options: Any) -> str:
        seen.append(what)
        return dumps(what, **options)

    with monkeypatch.context() as patch:
        patch.setattr(json, "dumps", kept)
        digest = hash_of(study)
    (what,) = seen
    return what, digest


def test_a_study_of_old_is_hashed_as_it_was(
    make_study: MakeStudy, monkeypatch: pytest.MonkeyPatch
) -> None:
    what, digest = hashed(make_study(), monkeypatch)
    assert {key: what[key] for key in OF_OLD} == OF_OLD
    assert sorted(what) == [
        *("arm", "client", "corridor", "horizon_s", "islands", "load", "merge", "resources"),
        *("sidecars", "slo", "telemetry", "tick_s", "warmup_s"),
    ]
    old = {**what, **OF_OLD}
    text = json.dumps(old, sort_keys=True, separators=(",", ":"), allow_nan=False)
    assert digest == hashlib.sha256(text.encode()).hexdigest()[:12]


@pytest.mark.parametrize(
    "defaults",
    [
        {"clock": "wall", "training": {"validate_every_merges": 0}},
        {"islands": {"shards": None, "elastic": None, "faults": []}},
        {"islands": {"inner": {"lr": 0.001, "schedule": {"kind": "constant"}}}},
        {"islands": {"outer": {"kind": "nesterov", "weighting": "tokens", "clip_norm": None}}},
        {"merge": {"transport": "auto", "fragments": 1, "overlap_steps": 0}},
        {"merge": {"checkpoint_content": "model", "checkpoint_keep": 1}},
    ],
)
def test_a_default_that_was_written_down_changes_no_hash(
    make_study: MakeStudy, defaults: dict[str, Any]
) -> None:
    assert hash_of(make_study(**defaults)) == hash_of(make_study())


@pytest.mark.parametrize(
    "changes",
    [
        {"clock": "steps"},
        {"training": {"validate_every_merges": 1}},
        {"islands": {"shards": 3}},
        {"islands": {"elastic": {"quorum": 1}}},
        {"islands": {"faults": [{"island": 0, "at": "reduce", "round": 1, "do": "kill"}]}},
        {"islands": {"inner": {"lr": 0.001, "schedule": {"warmup_tokens": 9}}}},
        {"islands": {"outer": "none"}},
        {"islands": {"outer": {"clip_norm": 1.0}}},
        {"islands": {"outer": {"weighting": "equal"}}},
        {"islands": {"outer": {"staleness_half_life_rounds": 2.0}}},
        {"merge": {"transport": "network"}},
        {"merge": {"fragments": 2}},
        {"merge": {"overlap_steps": 1}},
        {"merge": {"overlap_mixing": 0.25}},
        {"merge": {"checkpoint_content": "full"}},
        {"merge": {"checkpoint_every_merges": 2}},
        {"merge": {"checkpoint_keep": 2}},
        {"merge": {"checkpoint_in_background": True}},
    ],
    ids=str,
)
def test_anything_else_than_the_default_does(
    make_study: MakeStudy, changes: dict[str, Any]
) -> None:
    assert hash_of(make_study(**changes)) != hash_of(make_study())
