"""A user's policy through its entry point: read, built, listed, held to the contract; refused."""

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from policies import plugins
from policies.build import build_policy, needs_probes
from policies.contract import FRAME, check_policy
from policies.plugins import AnyPolicyConfig, config_class

EXAMPLE = Path(__file__).with_name("example_policy.py").read_text()
CONFIG = {"kind": "few_in_flight", "most_in_flight": 3}
ADAPTER: TypeAdapter[Any] = TypeAdapter(AnyPolicyConfig)
Install = Callable[..., None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Packages with entry points, as pip leaves them, on a path of their own."""
    monkeypatch.syspath_prepend(str(tmp_path))
    before = set(sys.modules)

    def install(
        name: str, *, kind: str = "few_in_flight", cls: str = "FewInFlightConfig", text: str = ""
    ) -> None:
        (tmp_path / f"{name}.py").write_text(text or EXAMPLE)
        info = tmp_path / f"{name}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[lull.policies]\n{kind} = {name}:{cls}\n")
        plugins.installed.cache_clear()

    yield install
    plugins.installed.cache_clear()
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


def read(config: dict[str, Any]) -> Any:
    return ADAPTER.validate_json(json.dumps(config))


def message(config: dict[str, Any]) -> str:
    with pytest.raises(ValidationError) as caught:
        read(config)
    (found,) = caught.value.errors()
    return str(found["msg"])


def test_a_plugin_is_read_built_and_keeps_the_contract(install: Install) -> None:
    install("users_policy")
    config = read(CONFIG)
    assert config.most_in_flight == 3
    assert json.loads(ADAPTER.dump_json(config)) == CONFIG
    assert not needs_probes(config)
    check_policy(lambda: build_policy(config, step_interval_s=0.25, tick_s=1.0, frame=FRAME))


def test_the_schema_lists_it_beside_the_built_in_kinds(install: Install) -> None:
    install("users_policy")
    kinds = ADAPTER.json_schema()["discriminator"]["mapping"]
    assert set(kinds) == {*plugins.built_in_kinds(), "few_in_flight"}


def test_nothing_is_imported_before_a_study_names_it(install: Install) -> None:
    install("breaks_at_import", text="raise RuntimeError('no licence')")
    assert read({"kind": "fixed_h", "h_steps": 4}).h_steps == 4
    assert message(CONFIG).endswith(
        "policy plugin few_in_flight (breaks_at_import:FewInFlightConfig of breaks_at_import 1.0) "
        "cannot be imported: RuntimeError: no licence"
    )


def test_its_mistakes_have_a_place(install: Install) -> None:
    install("users_policy")
    with pytest.raises(ValidationError) as caught:
        read({**CONFIG, "most": 3})
    (found,) = caught.value.errors()
    assert found["loc"] == ("few_in_flight", "most")
    assert found["type"] == "extra_forbidden"


def test_an_unknown_kind_names_the_closest_and_all(install: Install) -> None:
    install("users_policy")
    said = message({"kind": "few_in_fligth"})
    assert "unknown policy kind 'few_in_fligth'; did you mean 'few_in_flight'?" in said
    assert "fixed_h, pressure_gate" in said


def test_two_plugins_of_one_kind_are_refused(install: Install) -> None:
    install("first")
    install("second")
    said = message({"kind": "fixed_h", "h_steps": 4})
    assert "policy kind 'few_in_flight' is given by two plugins" in said
    assert "first:FewInFlightConfig of first 1.0" in said
    assert "second:FewInFlightConfig of second 1.0" in said


def test_a_plugin_that_shadows_a_built_in_is_refused(install: Install) -> None:
    install("impostor", kind="stopping")
    said = message({"kind": "stopping"})
    assert "impostor:FewInFlightConfig" in said
    assert "takes kind 'stopping', which is built in" in said


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"cls": "FewInFlight"}, "is no subclass of FrozenModel"),
        ({"kind": "other"}, "has to say kind: Literal['other']"),
        ({"cls": "Missing"}, "cannot be imported: AttributeError"),
        ({"text": EXAMPLE.replace("def build", "def make")}, "has no method build"),
    ],
)
def test_a_plugin_without_its_parts_is_refused(
    install: Install, changes: dict[str, Any], said: str
) -> None:
    install("halfway", **changes)
    with pytest.raises(ValueError, match=r"policy plugin .*halfway") as caught:
        config_class(changes.get("kind", "few_in_flight"))
    assert said in str(caught.value)
