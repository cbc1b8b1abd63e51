"""The Megatron trainer with a fault: one rank's copy of a parameter changes."""

from __future__ import annotations

from ckptcheck_worker import megatron_trainer


class FaultyRank(megatron_trainer.Rank):
    def perturb_one_rank(self, rank: int, name: str) -> None:
        """Change one number of a parameter (Megatron's name) on one rank only."""
        import torch

        if self.rank == rank:
            with torch.no_grad():
                self.parameters[name].weight.view(-1)[0] += 1


def perturb_one_rank(rank: int, name: str) -> None:
    """Change one number of a parameter on one rank only."""
    megatron_trainer._ranks().call_all("perturb_one_rank", rank=rank, name=name)


megatron_trainer.Rank = FaultyRank
RPC_METHODS = {**megatron_trainer.RPC_METHODS, "perturb_one_rank": perturb_one_rank}
