"""A plant stands for one server, one length of windows, one load: anything else is named."""

from typing import Any

import pytest

from orchestrator.calibration.verdict import Status
from orchestrator.config import StudyConfig
from orchestrator.replay.calibrated import Calibration
from orchestrator.replay.likeness import unlike
from orchestrator.replay.standing import mismatch_words, standing_of
from tests.replayed import ENGINE, PLANT, fitted_plant, replay_study

ATTACHED = {
    "kind": "attach",
    "url": "http://host:1",
    "max_model_len_tokens": 1024,
    "max_num_seqs": 8,
}
FILL = {"kind": "matmul", "threads": 1, "matrix_size": 384, "core_fraction": None}


def _engine(**changes: Any) -> dict[str, Any]:
    return {"sidecars": {"count": 1, "engine": {**ENGINE, **changes}}}


def test_the_study_of_the_fit_is_alike_and_the_plant_stands() -> None:
    study = replay_study()
    found = unlike(study, fitted_plant())
    assert (found.differing, found.unknown) == ((), ())
    standing = standing_of(fitted_plant(), study=study)
    assert (standing.status, standing.n) == (Status.MET, 5)
    assert "effect_ratio windows +10.0 % [+8.0, +12.0]" in standing.why


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"sidecars": {"count": 1, "engine": {"kind": "mock"}}}, "engine=vllm, this study's is m"),
        (_engine(max_num_seqs=3), "fitted on 8 slots, this study's max_num_seqs is 3"),
        (_engine(model="big"), "fitted on model tiny, this study's is big"),
        (_engine(dtype="bfloat16"), "fitted on dtype float32, this study's is bfloat16"),
        (_engine(env={"OMP": "1"}), "fitted on env {}, this study's is {'OMP': '1'}"),
        ({"sidecars": {"count": 2, "engine": ENGINE}}, "beside 1 sidecars, this study has 2"),
        ({"islands": {"count": 3}}, "fitted beside 2 islands, this study has 3"),
        ({"merge": {"window_s": 8.0}}, "fitted on windows of 4 s, this study's are 8 s"),
        ({"merge": {"fill": {"kind": "none"}}}, "fitted on fill matmul, this study's is none"),
        ({"merge": {"fill": {**FILL, "threads": 2}}}, "fill of threads 1, this study's is 2"),
        (
            {"merge": {"fill": {**FILL, "core_fraction": 0.25}}},
            "fill of core_fraction None, this study's is 0.25",
        ),
    ],
)
def test_another_study_is_not_met_with_both_values(changes: dict[str, Any], why: str) -> None:
    study = replay_study(**changes)
    standing = standing_of(fitted_plant(), study=study)
    assert standing.status is Status.NOT_MET
    assert why in standing.why
    assert any(why in words for words in mismatch_words(study, fitted_plant()))


@pytest.mark.parametrize(
    ("study", "fitted_on", "unknown"),
    [
        (replay_study(), {"server": None}, ("model",)),
        (replay_study(), {"islands": None, "sidecars": None}, ("sidecars", "islands")),
        (replay_study(), {"fill": {}}, ("fill.kind",)),
        (
            replay_study(),
            {"fill": {"kind": "matmul"}},
            ("fill.threads", "fill.core_fraction", "fill.matrix_size"),
        ),
        (
            replay_study(sidecars={"count": 1, "engine": ATTACHED}),
            {"server": {"model": "tiny"}},
            ("model",),
        ),
    ],
)
def test_what_one_of_them_does_not_state_is_never_a_match(
    study: StudyConfig, fitted_on: dict[str, Any], unknown: tuple[str, ...]
) -> None:
    calibration = fitted_plant(**fitted_on)
    assert unlike(study, calibration).unknown == unknown
    standing = standing_of(calibration, study=study)
    assert standing.status is Status.NOT_ASSESSABLE
    assert f"unknown: {', '.join(unknown)} stated by one" in standing.why


def test_too_few_seeds_are_said_beside_a_mismatch() -> None:
    standing = standing_of(fitted_plant(seeds=1), study=replay_study(merge={"window_s": 8.0}))
    assert standing.status is Status.NOT_MET
    assert "this study's are 8 s; the transfer check knows every figure in 1 seed" in standing.why


def test_bare_numbers_were_fitted_for_nothing() -> None:
    study = replay_study()
    assert mismatch_words(study, Calibration(plant=PLANT)) == ()
    assert standing_of(Calibration(plant=PLANT), study=study).status is Status.ABSENT
