"""Several devices that share the weights of a run as well as its batches (`trainer.strategy=fsdp`).

Every process holds its part of each weight, of its gradient and of the optimizer's state. A block
of the network (`BenchmarkModule.blocks`) is gathered when it is computed and dropped afterwards;
what is in no block stays gathered for the whole pass. How a batch is shared, and how gradients are
weighed, is as with weights that every process has (:mod:`benchmarks.devices`).

The network itself stays whole, in the memory of the host: a copy of it is sharded, trains and is
evaluated, and hands its weights back at the end. So weights, checkpoints and what is made of them
are those of one device, and either kind of run continues the other's. Lightning's own
`ModelParallelStrategy` leaves the network sharded after a fit, for which weights would have to be
gathered wherever they are read, has their whole state on rank 0 alone, and refuses `64-true`.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Mapping
from typing import Any

import lightning as L
from lightning.pytorch.strategies import DDPStrategy, Strategy
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.optim import Optimizer

from attention.steps import needs_steps
from benchmarks.devices.batches import SharedBatches
from benchmarks.sections import TrainerConfig
from domains.base import BenchmarkModule


def strategy_of(settings: TrainerConfig) -> Strategy | str:
    """How Lightning has to train with these settings."""
    if settings.devices == 1:
        return "auto"
    return ShardedWeights() if settings.strategy == "fsdp" else SharedBatches()


def check_sharding(settings: TrainerConfig, module: BenchmarkModule) -> None:
    """Make sure that a model can be trained as the settings ask.

    Raises:
        ValueError: its weights are to be sharded, and cannot be.
    """
    if settings.strategy != "fsdp":
        return
    small = [
        name
        for name, parameter in module.net.named_parameters()
        if not parameter.dim() or (parameter.requires_grad and not parameter.numel())
    ]
    if not module.blocks():
        obstacle = f"{type(module).__name__} names no blocks of its network"
    elif needs_steps(module.net):
        obstacle = "its attention changes whole weights after a step"
    elif small:
        obstacle = f"'{small[0]}' is a single number, or none at all, which cannot be sharded"
    else:
        return
    raise ValueError(
        f"trainer.strategy='fsdp' cannot serve this model: {obstacle}; allowed here: ddp, with "
        "which every device has all weights"
    )


class ShardedWeights(SharedBatches):
    """Shards the weights of the network over all processes (FSDP2)."""

    _whole: nn.Module | None = None

    def setup(self, trainer: L.Trainer) -> None:
        """Shard the network, then make its optimizer."""
        # Not the one of DDP, which moves all weights to the device and wraps the module.
        super(DDPStrategy, self).setup(trainer)

    def model_to_device(self) -> None:
        """Have a sharded copy take the place of the network.

        All processes have the same weights: drawn with the same seed, or read from one file.
        """
        # Losses are made of what a network gives, and leave it as it is.
        warnings.filterwarnings("ignore", message=".*returned a view tensor.*")
        module: Any = self.lightning_module
        mesh = init_device_mesh(self.root_device.type, (self.world_size,))
        self._whole, module.net = module.net, copy.deepcopy(module.net)
        for block in module.blocks():
            fully_shard(block, mesh=mesh)
        fully_shard(module.net, mesh=mesh)
        super().model_to_device()

    def _setup_model(self, model: nn.Module) -> nn.Module:  # type: ignore[override]
        return model

    def on_train_end(self) -> None:
        """Hand the trained weights over to the network."""
        module: Any = self.lightning_module
        assert self._whole is not None
        self._whole.load_state_dict(_gathered(module.net.state_dict()))

    def teardown(self) -> None:
        """Put the network back. Also after an error, so without the other processes."""
        module: Any = self.lightning_module
        if self._whole is not None:
            module.net, self._whole = self._whole, None
            self.optimizers = []  # they hold the shards
        super().teardown()

    def lightning_module_state_dict(self) -> dict[str, Any]:
        """State of the whole module, on every process."""
        state: dict[str, Any] = _gathered(super().lightning_module_state_dict())
        return state

    def optimizer_state(self, optimizer: Optimizer) -> dict[str, Tensor]:
        """State of an optimizer over the whole network, on every process."""
        state: dict[str, Tensor] = _gathered(super().optimizer_state(optimizer))
        return state

    def load_optimizer_state_dict(self, checkpoint: Mapping[str, Any]) -> None:
        """Keep this process's part of such states."""
        states = [
            _shared_out(state, optimizer)
            for optimizer, state in zip(
                self.optimizers, checkpoint["optimizer_states"], strict=True
            )
        ]
        super().load_optimizer_state_dict({"optimizer_states": states})


def _gathered(state: Any) -> Any:
    """The same with every shard replaced by its whole, on the CPU. All processes call it."""
    if isinstance(state, DTensor):
        return state.full_tensor().cpu()
    if isinstance(state, Mapping):
        return {name: _gathered(value) for name, value in state.items()}
    return state


def _shared_out(state: Mapping[str, Any], optimizer: Optimizer) -> dict[str, Any]:
    """State of an optimizer with tensors of a parameter's shape sharded as the parameter is."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]

    def shard(value: Any, like: DTensor) -> Any:
        if not isinstance(value, Tensor) or value.shape != like.shape:
            return value
        return distribute_tensor(value.to(like.device), like.device_mesh, like.placements)

    return {
        **state,
        "state": {
            index: {name: shard(value, parameters[index]) for name, value in values.items()}
            for index, values in state["state"].items()
        },
    }
