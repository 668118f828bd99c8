"""Gauges in every form that servers serve them; a missing one is an error, never zero."""

import pytest

from actors.serving.engine import ServerFailed
from actors.serving.metrics import MetricMissing, ServerGauges, parse_gauges

NEW = """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="tiny"} 3.0
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="tiny"} 2.0
# TYPE vllm:num_requests_waiting_by_reason gauge
vllm:num_requests_waiting_by_reason{engine="0",model_name="tiny",reason="capacity"} 2.0
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine="0",model_name="tiny"} 0.25
# TYPE vllm:prompt_tokens_total counter
vllm:prompt_tokens_total{engine="0",model_name="tiny"} 99.0
"""
OLD = NEW.replace("kv_cache_usage_perc", "gpu_cache_usage_perc")
RAY_SERVE = NEW.replace("vllm:", "vllm_").replace('engine="0"', 'engine="0",ReplicaId="r1"')
TWO_ENGINES = """\
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="tiny"} 3.0
vllm:num_requests_running{engine="1",model_name="tiny"} 4.0
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="tiny"} 0.0
vllm:num_requests_waiting{engine="1",model_name="tiny"} 5.0
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine="0",model_name="tiny"} 0.5
vllm:kv_cache_usage_perc{engine="1",model_name="tiny"} 0.25
"""


@pytest.mark.parametrize("text", [NEW, OLD, RAY_SERVE, RAY_SERVE.replace("vllm_", "ray_vllm_")])
def test_one_engine_in_any_form(text: str) -> None:
    assert parse_gauges(text) == ServerGauges(running=3, waiting=2, kv_usage=0.25)


def test_engines_are_summed_and_their_cache_usage_averaged() -> None:
    assert parse_gauges(TWO_ENGINES) == ServerGauges(running=7, waiting=5, kv_usage=0.375)


@pytest.mark.parametrize(
    "name", ["vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc"]
)
def test_a_renamed_metric_is_named_with_the_server_and_what_it_has(name: str) -> None:
    renamed = NEW.replace(name + "{", "vllm:num_requests_renamed{")
    with pytest.raises(MetricMissing) as caught:
        parse_gauges(renamed, server="vllm 0.99")
    assert name in str(caught.value)
    assert "vllm 0.99" in str(caught.value)
    assert "vllm:num_requests_renamed" in str(caught.value)
    assert isinstance(caught.value, ServerFailed)


@pytest.mark.parametrize("text", ["", "<html>not metrics</html>\n", NEW.split("vllm:num")[0]])
def test_text_without_the_metrics_is_an_error(text: str) -> None:
    with pytest.raises(MetricMissing):
        parse_gauges(text)


def test_two_engines_are_summed_also_where_the_server_writes_no_type_lines() -> None:
    bare = "\n".join(line for line in TWO_ENGINES.splitlines() if not line.startswith("#")) + "\n"
    assert parse_gauges(bare) == parse_gauges(TWO_ENGINES)
