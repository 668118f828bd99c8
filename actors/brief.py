"""A foreign error in one short line, for a record and a terminal that name it more than once."""

from actors.serving.log_tail import FROM_LOG, in_one_line

MOST_CHARS = 160
_OUT_OF_MEMORY = ("NODE_OUT_OF_MEMORY", "running low on memory")  # Ray explains it at length


def brief(error: BaseException) -> str:
    """What was wrong, without a traceback and without advice on how to configure Ray."""
    cause = getattr(error, "cause", None)  # Ray's wrapping of an actor's own error
    if isinstance(cause, BaseException):
        return brief(cause)
    return in_brief(str(error)) or type(error).__name__


def in_words(error: BaseException) -> str:
    """The system's own words where it has some: without errno and a path that is said anyway."""
    return str(getattr(error, "strerror", None) or error)


def in_brief(text: str) -> str:
    """The first sentence of the last line, cut; empty for no text."""
    if any(mark in text for mark in _OUT_OF_MEMORY):
        return "Ray ended its process: the node ran out of memory (free some, or use fewer islands)"
    if FROM_LOG in text:  # a server's end: its log's last line is seldom what was wrong
        text = in_one_line(text)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    sentence = lines[-1].split(". ", 1)[0] if lines else ""
    return sentence if len(sentence) <= MOST_CHARS else sentence[:MOST_CHARS] + " ..."
