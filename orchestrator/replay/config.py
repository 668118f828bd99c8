"""The plant's numbers: what `lull calibrate` fits and a replay reads, as JSON.

Every field has its unit; only noise that is left out has a default.
"""

from typing import Annotated

from pydantic import Field

from policies.units import FrozenModel, PositiveCount, PositiveSeconds, Seconds, Weight

LEAST_STEP_S = 1e-6  # far below any server's step; keeps step counts and clock times exact


class PlantConfig(FrozenModel):
    """A server with continuous batching, and what a merge beside it does to it.

    A step with n sequences, of which the new ones bring p prompt tokens, is
    step_base_s + step_per_seq_s * n + prefill_per_token_s * p of work. Outside merge windows a step
    of w work takes w * pace, inside (w + (factor - 1) * (w + merge_step_s)) * pace.
    """

    slots: PositiveCount  # sequences in a step (vLLM: max_num_seqs)
    step_base_s: Annotated[float, Field(ge=LEAST_STEP_S, allow_inf_nan=False)]
    step_per_seq_s: Seconds
    prefill_per_token_s: Seconds
    overhead_s: Seconds  # client, HTTP and scheduling, before the queue; the median over requests
    overhead_log_sd: Weight = 0.0  # lognormal around overhead_s, by request
    merge_factor: Annotated[float, Field(ge=1, allow_inf_nan=False)]  # the median over windows
    merge_factor_log_sd: Weight = 0.0  # lognormal around merge_factor - 1, by window
    merge_step_s: Seconds = 0.0  # what a merge finds in a step besides its work (waits at barriers)
    merge_calm_s: Seconds = 0.0  # the first part of a window slows nothing: the median over windows
    merge_calm_log_sd: Weight = 0.0  # lognormal around merge_calm_s, by window
    after_window_s: Seconds = 0.0  # a slow-down lasts this long past its window's end
    pace_log_sd: Weight = 0.0  # the server's own pace: lognormal around 1, by slot of time
    pace_slot_s: PositiveSeconds = 1.0
