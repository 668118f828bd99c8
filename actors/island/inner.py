"""Inner AdamW on the float32 masters, its learning rate by tokens, and its state as tensors."""

import math

import torch
from torch import Tensor, nn

from actors.config import InnerConfig
from actors.island.flat import FlatParameters


def learning_rate(config: InnerConfig, tokens: int) -> float:
    """Rate of a step that begins after ``tokens`` trained tokens of a shard.

    Rises linearly over ``warmup_tokens`` (never from 0: the first step would do nothing), then
    stays, or falls on a line or a half cosine to ``final_fraction`` at ``total_tokens``.
    """
    schedule = config.schedule
    if tokens < schedule.warmup_tokens:
        return config.lr * (tokens + 1) / (schedule.warmup_tokens + 1)
    if schedule.total_tokens is None:
        return config.lr
    done = (tokens - schedule.warmup_tokens) / (schedule.total_tokens - schedule.warmup_tokens)
    done = min(1.0, done)
    shape = 1.0 - done if schedule.kind == "linear" else 0.5 * (1.0 + math.cos(math.pi * done))
    floor = schedule.final_fraction
    return config.lr * (floor + (1.0 - floor) * shape)


class InnerOptimizer:
    """AdamW; norms are not decayed."""

    def __init__(self, flat: FlatParameters, config: InnerConfig) -> None:
        self._flat = flat
        self._config = config
        masters: list[nn.Parameter] = flat.masters
        groups = [
            {"params": [p for p in masters if p.ndim >= 2], "weight_decay": config.weight_decay},
            {"params": [p for p in masters if p.ndim < 2], "weight_decay": 0.0},
        ]
        self._adamw = torch.optim.AdamW(
            [group for group in groups if group["params"]],
            lr=config.lr,
            betas=(config.beta1, config.beta2),
            fused=True,
        )

    def step(self, loss: Tensor, *, tokens: int) -> float:
        """Backward pass and one step after ``tokens`` trained tokens; returns the rate it took."""
        loss.backward()
        return self.apply(tokens=tokens)

    def apply(self, *, tokens: int) -> float:
        """One step on the gradients that the parameters hold, which are gone afterwards."""
        self._flat.grads_to_masters()
        if self._config.clip_norm is not None:
            nn.utils.clip_grad_norm_(self._flat.masters, self._config.clip_norm)
        rate = learning_rate(self._config, tokens)
        for group in self._adamw.param_groups:
            group["lr"] = rate
        self._adamw.step()
        self._adamw.zero_grad(set_to_none=True)
        self._flat.to_model()
        return rate

    def tensors(self) -> dict[str, Tensor]:
        """The optimizer's state by name: ``<parameter number>.<what>``."""
        state = self._adamw.state_dict()["state"]
        return {
            f"{number}.{name}": value
            for number, values in state.items()
            for name, value in values.items()
        }

    def load(self, tensors: dict[str, Tensor]) -> None:
        """The state that ``tensors`` gave, to the bit."""
        state: dict[int, dict[str, Tensor]] = {}
        for key, value in tensors.items():
            number, name = key.split(".", 1)
            state.setdefault(int(number), {})[name] = value
        groups = self._adamw.state_dict()["param_groups"]
        self._adamw.load_state_dict({"state": state, "param_groups": groups})
