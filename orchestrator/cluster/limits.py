"""How long an arm's parts may take at most, by the limits that its study sets.

Beyond them something hangs; what is merely slow or broken is told of by name before.
"""

from actors.deadlines import ANSWER, JOIN, START, TOKENIZE
from actors.island.data.dataset import held_in_memory
from orchestrator.config import StudyConfig
from orchestrator.ray_address import names_cluster

FORM_LIMIT_S = 3 * (JOIN.limit_s + ANSWER.limit_s)  # introduce, open memory, form


def islands_limit_s(study: StudyConfig) -> float:
    """Seconds until islands are there; on a cluster their nodes may first tokenize the text."""
    here = not names_cluster()  # then the token file was written before any start
    ready = here or held_in_memory(study.islands.data)
    return START.limit_s if ready else START.limit_s + TOKENIZE.limit_s


def refresh_limit_s(study: StudyConfig) -> float:
    """Seconds that one server takes to serve other weights; 0 where it never does."""
    refresh = study.sidecars.refresh
    if refresh.kind == "none":
        return 0.0
    start_s: float = getattr(study.sidecars.engine, "start_timeout_s", 0.0)
    return refresh.timeout_s + (start_s if refresh.kind == "restart" else 0.0)


def end_limit_s(study: StudyConfig) -> float:
    """Seconds after the horizon: a merge that fails at its last step, servers behind with theirs.

    A server takes ``keep_rounds`` rounds of weights one after another at most.
    """
    merge, refresh = study.merge, study.sidecars.refresh
    merge_s = merge.window_s + 3 * merge.timeout_s + 3 * ANSWER.limit_s
    return merge_s + refresh.keep_rounds * refresh_limit_s(study)
