"""What an island trains: a model that gives a loss; and how documents in one window stay apart."""

import torch
from torch import Tensor, nn
from torch.nn import functional

IGNORED = -100  # label of a token that is not learned from: the default of cross_entropy


class LanguageModel(nn.Module):
    """Predicts the next token."""

    def loss(self, window: Tensor, documents: Tensor | None = None) -> Tensor:
        """Mean cross-entropy in nats of the tokens after the first.

        window: token ids  # [batch, length + 1]. documents: of which document each token is, in
        runs  # [batch, length + 1]; then no token sees another document, and a document's first
        token is no label.
        """
        raise NotImplementedError


def labels_of(window: Tensor, documents: Tensor | None) -> Tensor:
    """The token after each input; IGNORED where it begins another document.  # [batch, length]"""
    labels = window[:, 1:]
    if documents is None:
        return labels
    return labels.masked_fill(documents[:, 1:] != documents[:, :-1], IGNORED)


def mean_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean over the labels that count; 0 where there is none.

    logits  # [batch, length, vocabulary]; labels  # [batch, length]
    """
    total = functional.cross_entropy(
        logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED, reduction="sum"
    )
    return total / (labels != IGNORED).sum().clamp(min=1)


def visible(documents: Tensor) -> Tensor:
    """Whether a token (row) sees another: its own document, not after itself.

    documents  # [batch, length] -> [batch, 1, length, length]
    """
    same = documents[:, :, None] == documents[:, None, :]
    return same.tril()[:, None]


def positions_in(documents: Tensor) -> Tensor:
    """Place of each token in its document, from 0 at the window's start.  # [batch, length]"""
    index = torch.arange(documents.shape[1], device=documents.device)
    begins = torch.ones_like(documents, dtype=torch.bool)
    begins[:, 1:] = documents[:, 1:] != documents[:, :-1]
    return index - (index * begins).cummax(dim=1).values
