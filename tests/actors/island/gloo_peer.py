"""One island in a process of its own, for test_comm.py: trains, merges over Gloo, tells its hashes.

python gloo_peer.py RANK WORLD PORT ROUNDS CONFIG_JSON MERGE_JSON CHECKPOINT_DIR
"""

import json
import os
import sys
from pathlib import Path

import torch

from actors.clock import MonotonicClock
from actors.config import IslandsConfig, MergeConfig
from actors.island.comm import PeerLost, join_group
from actors.island.island import Island


def main() -> None:
    rank, world, port, rounds = map(int, sys.argv[1:5])
    config = IslandsConfig.model_validate_json(sys.argv[5])
    merge = MergeConfig.model_validate_json(sys.argv[6])
    torch.set_num_threads(1)
    torch.manual_seed(rank)  # islands whose global generators differ must still start alike
    island = Island(config, merge, rank, clock=MonotonicClock())
    island.connect(
        lambda: join_group(
            rank=rank,
            world_size=world,
            master_addr="127.0.0.1",
            master_port=port,
            join_timeout_s=30.0,
            call_timeout_s=merge.timeout_s,
            device=torch.device("cpu"),
        )
    )
    told: dict[str, object] = {
        "hashes": [island.reset(seed=7, checkpoint_dir=Path(sys.argv[7]))],
        "bytes": [],
        "lost": None,
    }
    for round_ in range(1, rounds + 1):
        for _ in range(rank + round_):  # unequal work, so unequal weights
            island.step()
        before = island.parameter_hash()
        if os.environ.get("DIE_IN_ROUND") == f"{rank}:{round_}":
            os.kill(os.getpid(), 9)
        try:
            work = island.perform(island.prepare(), round_=round_, end_s=float(round_))
        except PeerLost as lost:
            told["lost"] = str(lost)
            told["unchanged"] = island.parameter_hash() == before
            break
        told["hashes"].append(island.parameter_hash())  # type: ignore[attr-defined]
        told["bytes"].append(work.bytes_reduced)  # type: ignore[attr-defined]
    island.disconnect()
    sys.stdout.write(json.dumps(told))


if __name__ == "__main__":
    main()
