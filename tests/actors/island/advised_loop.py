"""Two learners and DiLoCo by hand in plain torch, merging when the advisor says so."""

import copy

import torch

from actors.coordinator.advisor_client import AdvisorClient, Progress


def train(url: str, *, steps: int) -> tuple[list[int], float]:
    anchor = torch.nn.Linear(8, 1)  # the merged model
    models = [copy.deepcopy(anchor) for _ in range(2)]
    inner = [torch.optim.AdamW(model.parameters(), lr=0.05) for model in models]
    outer = torch.optim.SGD(anchor.parameters(), lr=0.7, momentum=0.9, nesterov=True)
    advisors = [AdvisorClient(url, learner=i, own_h_steps=20, timeout_s=5.0) for i in range(2)]
    merges = []
    for step in range(1, steps + 1):
        ready = []
        for model, optimizer, advisor in zip(models, inner, advisors, strict=True):
            x = torch.randn(32, 8)
            loss = (model(x) - x.sum(dim=1, keepdim=True)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            ready.append(advisor.ready_to_merge(step, Progress(tokens=32 * step, loss=loss.item())))
        if any(ready):  # both hear the same; where one call failed, the other has heard it
            for p, *local in zip(*(m.parameters() for m in (anchor, *models)), strict=True):
                p.grad = p.detach() - torch.stack([q.detach() for q in local]).mean(dim=0)
            outer.step()
            for model, advisor in zip(models, advisors, strict=True):
                model.load_state_dict(anchor.state_dict())
                advisor.merged(step)
            merges.append(step)
    return merges, loss.item()
