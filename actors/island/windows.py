"""Batches of windows as tensors on an island's device."""

import numpy as np
import torch
from torch import Tensor

from actors.island.data.shards import Batch


def on_device(batches: list[Batch], device: torch.device) -> tuple[Tensor, Tensor | None]:
    """Batches as one: tokens [batch, seq_len + 1] and, where they are packed, documents."""
    tokens = torch.from_numpy(np.concatenate([b.tokens for b in batches])).to(device)
    parts = [b.documents for b in batches]
    if any(part is None for part in parts):
        return tokens, None
    documents = np.concatenate([part for part in parts if part is not None])
    return tokens, torch.from_numpy(documents).to(device)
