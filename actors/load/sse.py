"""Server-sent events from bytes that may be cut anywhere (WHATWG HTML, section 9.2.6).

Pure: bytes in, the data of complete events out. Event names, ids and retry times are not needed.
"""

import codecs
import re

_LINE_END = re.compile(r"\r\n|\n|\r")


class SseParser:
    """Feed chunks as they come; each call gives the data of the events that they complete."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8-sig")()
        self._buffer = ""
        self._data: list[str] = []

    def feed(self, chunk: bytes) -> list[str]:
        """Data of the events completed by ``chunk``; lines of one event are joined by newlines."""
        self._buffer += self._decoder.decode(chunk)
        events: list[str] = []
        for line in self._lines():
            if line:
                self._field(line)
            elif self._data:
                events.append("\n".join(self._data))
                self._data = []
        return events

    @property
    def pending(self) -> bool:
        """Whether bytes of an event that has not ended are held; at the end: cut off."""
        return bool(self._buffer.strip("\r") or self._data or self._decoder.getstate()[0])

    def _lines(self) -> list[str]:
        lines: list[str] = []
        start = 0
        for end in _LINE_END.finditer(self._buffer):
            if end.group() == "\r" and end.end() == len(self._buffer):
                break  # perhaps half of a CRLF
            lines.append(self._buffer[start : end.start()])
            start = end.end()
        self._buffer = self._buffer[start:]
        return lines

    def _field(self, line: str) -> None:
        name, _, value = line.partition(":")
        if name == "data":  # a comment has an empty name
            self._data.append(value.removeprefix(" "))
