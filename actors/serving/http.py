"""Small blocking HTTP calls to a server's control paths; never through a proxy."""

import http.client
import json
import urllib.error
import urllib.request
from typing import Any

_opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class Unreachable(RuntimeError):
    """No answer with status 200; ``status`` is what was answered instead, None for nothing."""

    status: int | None = None


def get_text(url: str, *, timeout_s: float = 10.0) -> str:
    return _call(urllib.request.Request(url), timeout_s)


def get_json(url: str, *, timeout_s: float = 10.0) -> Any:
    return _parsed(url, get_text(url, timeout_s=timeout_s))


def post_json(url: str, body: dict[str, Any], *, timeout_s: float = 10.0) -> str:
    """The answer's text."""
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(url, data=json.dumps(body).encode(), headers=headers)
    return _call(request, timeout_s)


def ask_json(url: str, body: dict[str, Any], *, timeout_s: float = 10.0) -> Any:
    """POST, and the answer read as JSON."""
    return _parsed(url, post_json(url, body, timeout_s=timeout_s))


def _parsed(url: str, text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise Unreachable(f"{url} answers no JSON: {text[:80]!r}") from error


def _call(request: urllib.request.Request, timeout_s: float) -> str:
    try:
        with _opener.open(request, timeout=timeout_s) as response:
            return str(response.read().decode())
    except urllib.error.HTTPError as error:
        with error:
            detail = error.read(200).decode(errors="replace").strip()
        said = f": {detail}" if detail else ""
        failed = Unreachable(f"{request.full_url} answers status {error.code}{said}")
        failed.status = error.code
        raise failed from error
    except (OSError, ValueError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", error)  # refused, reset, timed out, cut off, not HTTP
        raise Unreachable(f"{request.full_url} does not answer: {reason}") from error
