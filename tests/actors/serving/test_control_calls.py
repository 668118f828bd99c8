"""Calls to a server's control paths: whatever goes wrong on the wire has one name."""

import socket
import threading

import pytest

from actors.serving.http import Unreachable, get_json, get_text

LIMIT_S = 10.0


@pytest.mark.parametrize(
    "said",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf of it",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n64\r\nhalf of it",
        b"SSH-2.0-OpenSSH_9.9\r\n",
        b"",
    ],
    ids=["cut off", "cut off in a chunk", "no HTTP", "nothing"],
)
def test_an_answer_that_is_no_whole_one_is_unreachable(said: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(LIMIT_S)

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(65_536)
                connection.sendall(said)

        thread = threading.Thread(target=answer)
        thread.start()
        url = f"http://127.0.0.1:{server.getsockname()[1]}/health"
        with pytest.raises(Unreachable, match=r"/health does not answer: ") as caught:
            get_text(url, timeout_s=LIMIT_S)
        thread.join(LIMIT_S)
    assert caught.value.status is None


def test_an_answer_that_is_no_json_is_unreachable() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(LIMIT_S)

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(65_536)
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n<ok>")

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(Unreachable, match="answers no JSON: '<ok>'"):
            get_json(f"http://127.0.0.1:{server.getsockname()[1]}/", timeout_s=LIMIT_S)
        thread.join(LIMIT_S)
