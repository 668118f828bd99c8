"""Study files: strict, frozen, and every mistake named with its place and a way out."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from pydantic import ValidationError

from orchestrator.config import StudyConfig
from orchestrator.study import load_study

QUICKSTART = Path(__file__).parents[2] / "experiments" / "quickstart" / "study.yaml"
Edit = Callable[[str, str], Path]


@pytest.fixture
def edit(tmp_path: Path) -> Edit:
    def replaced(old: str, new: str) -> Path:
        text = QUICKSTART.read_text()
        assert old in text
        path = tmp_path / "study.yaml"
        path.write_text(text.replace(old, new, 1))
        return path

    return replaced


def message(path: Path) -> str:
    with pytest.raises(ValueError, match="study") as caught:
        load_study(path)
    return str(caught.value)


STUDIES = sorted(p for p in QUICKSTART.parents[1].rglob("*.yaml") if p.name != "space.yaml")


@pytest.mark.parametrize("path", STUDIES, ids=lambda p: f"{p.parent.name}/{p.stem}")
def test_every_study_of_the_project_is_valid(path: Path) -> None:
    if "manifest" in path.parts or path.read_text().lstrip().startswith("apiVersion"):
        pytest.skip("a Kubernetes manifest")
    assert load_study(path).seeds


def test_a_study_cannot_be_changed() -> None:
    study = load_study(QUICKSTART)
    with pytest.raises(ValidationError, match="frozen"):
        study.horizon_s = 1.0  # type: ignore[misc]


def test_islands_that_no_server_could_take_are_refused_where_they_are_served() -> None:
    raw = load_study(QUICKSTART).model_dump(mode="json")
    raw["islands"]["model"]["vocab_size"] = 259
    assert StudyConfig.model_validate_json(json.dumps(raw)).sidecars.refresh.kind == "none"
    raw["sidecars"]["engine"]["model"] = "islands"
    with pytest.raises(ValidationError, match="vocab_size=259 is below 260"):
        StudyConfig.model_validate_json(json.dumps(raw))
    raw["sidecars"] |= {"engine": {"kind": "mock"}, "refresh": {"kind": "restart"}}
    with pytest.raises(ValidationError, match="vocab_size=259 is below 260"):
        StudyConfig.model_validate_json(json.dumps(raw))


@pytest.mark.parametrize(
    ("old", "new", "place", "hint"),
    [
        ("horizon_s:", "horizont_s:", "horizont_s: unknown key", "did you mean 'horizon_s'?"),
        ("floor_steps:", "flor_steps:", "corridor.flor_steps", "did you mean 'floor_steps'?"),
        ("max_num_seqs:", "max_seqs:", "max_seqs: unknown key", "did you mean 'max_num_seqs'?"),
        ("half_life_s: 2.0", "halflife_s: 2.0", "policies.wa_ewma", "did you mean 'half_life_s'?"),
        ("hidden_size:", "hiden_size:", "islands.model.hiden_size", "did you mean 'hidden_size'?"),
        ("of: wa_ewma}", "off: wa_ewma}", "arms[5]", "did you mean 'of'?"),
    ],
)
def test_a_misspelt_key_is_named_with_the_closest_match(
    edit: Edit, old: str, new: str, place: str, hint: str
) -> None:
    text = message(edit(old, new))
    assert place in text
    assert hint in text


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("floor_steps: 40", "floor_steps: 140", "floor_steps=140 is above ceiling_steps=120"),
        ("target_steps: 60", "target_steps: 10", "target_steps=10 lies outside"),
        ("judge: [wa_ewma]", "judge: [wa_evma]", "judge names policy 'wa_evma'"),
        ("seeds: [0, 1]", "seeds: [1, 1]", "each once"),
        ("seeds: [0, 1]", "seeds: []", "give at least one"),
        ("tick_s: 1.0", "tick_s: -1.0", "tick_s: Input should be greater than 0 (got -1.0)"),
        ("tick_s: 1.0", "tick_s: .nan", "tick_s"),
        ("kind: wa_score,", "kind: wa_skore,", "wa_skore"),
        ("study: quickstart", "study: ../up", "study"),
        ("horizon_s: 34.0", "", "horizon_s: is missing"),
        ("heads: 4", "heads: 3", "hidden_size=128 is no multiple of heads=3"),
        ("seeds: [0, 1]", "seeds: [0, 1]\nseeds: [2]", "key 'seeds' stands twice"),
        ("count: 2", "count: two", "islands.count"),
        ("study: quickstart", "study: [", "no valid YAML"),
    ],
)
def test_bad_values_say_what_where_and_the_value(edit: Edit, old: str, new: str, said: str) -> None:
    text = message(edit(old, new))
    assert said in text
    assert "study.yaml" in text


def test_a_missing_file_is_one_line(tmp_path: Path) -> None:
    text = message(tmp_path / "no-study.yaml")
    assert "cannot be read" in text
    assert "\n" not in text


def test_scientific_notation_is_a_number(edit: Edit) -> None:
    assert load_study(edit("tick_s: 1.0", "tick_s: 1e0")).tick_s == 1.0


def test_schema_names_every_key_of_the_study() -> None:
    schema = StudyConfig.model_json_schema()
    assert set(schema["properties"]) == set(StudyConfig.model_fields)
    assert schema["additionalProperties"] is False


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("judge: [wa_ewma]", "judge: [wa_ewma, wa_ewma]", "name each policy once"),
        ("study: quickstart", "study: " + "x" * 300, "study: "),
        ("horizon_s: 34.0", "? [1, 2]\n: 3", "keys are words"),
        ("half_life_s: 2.0", "halflife_s: 2.0", "policies.wa_ewma.halflife_s"),
    ],
)
def test_more_bad_values_are_named(edit: Edit, old: str, new: str, said: str) -> None:
    assert said in message(edit(old, new))


def test_a_study_without_arms_is_refused(edit: Edit) -> None:
    text = QUICKSTART.read_text()
    arms = text[text.index("arms:\n") : text.index("\njudge:")]
    assert "arms is empty" in message(edit(arms, "arms: []\n"))


@pytest.mark.parametrize(
    ("old", "new", "place"),
    [
        ("seeds: [0, 1]", f"seeds: [0, {2**63}]", "seeds[1]"),
        ("of: wa_ewma}", f"of: wa_ewma, draws: {10**14}}}", "arms[5]"),
        ("permutations: 100000", f"permutations: {10**14}", "gate.permutations"),
        ("resamples: 10000", f"resamples: {10**14}", "gate.resamples"),
        ("  count: 2", f"  count: {10**14}", "islands.count"),
        ("  count: 1", f"  count: {10**14}", "sidecars.count"),
        ("horizon_s: 34.0", "horizon_s: 1.0e12", "horizon_s=1e+12"),
        ("tick_s: 1.0", "tick_s: 1.0e-9", "above 2000000 ticks"),
    ],
)
def test_a_number_that_no_machine_can_list_is_refused(
    edit: Edit, old: str, new: str, place: str
) -> None:
    assert place in message(edit(old, new))
