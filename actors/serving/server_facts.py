"""What a running server says of itself: its version, its models, and its gauges."""

from typing import Any

from actors.serving.engine import ServerFailed
from actors.serving.http import Unreachable, get_json, get_text
from actors.serving.metrics import ServerGauges, parse_gauges


def server_version(url: str) -> str:
    answer = _get_json(f"{url}/version")
    version = answer.get("version") if isinstance(answer, dict) else None
    if not isinstance(version, str):
        raise ServerFailed(f"{url}/version names no version: {answer!r}; is it a vLLM server?")
    return version


def served_models(url: str) -> dict[str, int | None]:
    """Names of the models, each with its longest context where the server tells."""
    answer: Any = _get_json(f"{url}/v1/models")
    try:
        return {model["id"]: model.get("max_model_len") for model in answer["data"]}
    except (KeyError, TypeError, AttributeError) as error:
        raise ServerFailed(f"{url}/v1/models is no list of models: {answer!r}") from error


def server_gauges(url: str, *, version: str) -> ServerGauges:
    try:
        text = get_text(f"{url}/metrics")
    except Unreachable as error:
        raise ServerFailed(str(error)) from error
    return parse_gauges(text, server=f"{version} at {url}")


def unhealthy(url: str) -> str | None:
    """Why /health is not 200; None while it is."""
    try:
        get_text(f"{url}/health")
    except Unreachable as error:
        return str(error)
    return None


def _get_json(url: str) -> object:
    try:
        return get_json(url)
    except Unreachable as error:
        raise ServerFailed(str(error)) from error
