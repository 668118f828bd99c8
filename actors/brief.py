"""A foreign error in one short line, for a record and a terminal that name it more than once."""

MOST_CHARS = 160
_OUT_OF_MEMORY = ("NODE_OUT_OF_MEMORY", "running low on memory")  # Ray explains it at length


def brief(error: BaseException) -> str:
    """What was wrong, without a traceback and without advice on how to configure Ray."""
    cause = getattr(error, "cause", None)  # Ray's wrapping of an actor's own error
    if isinstance(cause, BaseException):
        return brief(cause)
    text = str(error)
    if any(mark in text for mark in _OUT_OF_MEMORY):
        return "Ray ended its process: the node ran out of memory (free some, or use fewer islands)"
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    last = lines[-1] if lines else type(error).__name__
    sentence = last.split(". ", 1)[0]
    return sentence if len(sentence) <= MOST_CHARS else sentence[:MOST_CHARS] + " ..."
