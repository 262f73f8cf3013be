"""Training and evaluation of the language models."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from domains.language import evaluate
from domains.language.config import LanguageRecipe
from domains.language.data import EvaluationText
from domains.language.evaluate import Score
from domains.language.interface import LanguageModel, Memory
from domains.language.stream import Batch
from domains.training_loss import MeanLossModule

MEMORY = "memory"
"""Key of what is remembered in a checkpoint."""

Scorer = Callable[[LanguageModel, Tensor, LanguageRecipe], Score]

SCORERS: Mapping[str, Scorer] = {
    "segments": lambda net, tokens, recipe: evaluate.segments(
        net, tokens, length=recipe.segment, columns=recipe.evaluation_batch
    ),
    "sliding": lambda net, tokens, recipe: evaluate.sliding(net, tokens, window=recipe.window),
    "xl": lambda net, tokens, recipe: evaluate.xl(net, tokens, columns=recipe.evaluation_batch),
}
"""By protocol, how a text is scored."""

BESIDE: Mapping[str, tuple[str, ...]] = {
    "segments": (),
    "sliding": ("segments",),
    "xl": ("segments", "sliding"),
}
"""Protocols by which the clean test text is scored besides the run's own."""


class LanguageModule(MeanLossModule):
    """Mean negative log-likelihood a token, in nats.

    Logs `train/loss` and `val/loss` (in segments) once an epoch. A test logs `test/ppl_PROTOCOL`
    and `val/ppl_PROTOCOL` under the run's protocol, the same with `_attackRATE` for contaminated
    texts, `test/ppl_PROTOCOL` under those of :data:`BESIDE`, and `test/ppl_unigram`.

    What Transformer-XL remembers lives on from step to step across epochs, and in the checkpoints
    that a run continues from; it is never part of the weights.

    Args:
        net: the model.
        recipe: see :class:`BenchmarkModule`.
        protocol: by which texts are scored.
    """

    net: LanguageModel
    recipe: LanguageRecipe

    def __init__(self, net: LanguageModel, recipe: LanguageRecipe, protocol: str) -> None:
        super().__init__(net, recipe)
        self.protocol = protocol
        self.memory: Memory | None = None
        self.val_memory: Memory | None = None
        self.val_sum, self.num_val_seen = 0.0, 0

    def parts(self) -> Mapping[str, nn.Module]:
        parts = super().parts()
        return {name: part for name, part in parts.items() if any(True for _ in part.parameters())}

    def blocks(self) -> Sequence[nn.Module]:
        return tuple(self.net.layers)

    def loss(self, batch: Batch) -> Tensor:
        if batch.reset or self.memory is None:
            self.memory = self.net.new_memory()
        log_likelihood, self.memory = self.net.log_likelihood(
            batch.inputs, batch.targets, memory=self.memory
        )
        return -log_likelihood.mean()

    def terms(self, batch: Batch) -> float:
        """Predicted tokens."""
        return batch.targets.numel()

    def on_validation_epoch_start(self) -> None:
        self.val_sum, self.num_val_seen = 0.0, 0

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        if batch.reset:
            self.val_memory = self.net.new_memory()
        log_likelihood, self.val_memory = self.net.log_likelihood(
            batch.inputs, batch.targets, memory=self.val_memory
        )
        self.val_sum -= float(log_likelihood.cpu().double().sum())
        self.num_val_seen += batch.targets.numel()

    def on_validation_epoch_end(self) -> None:
        self.log("val/loss", self.val_sum / self.num_val_seen)
        self.val_memory = None

    def test_step(self, batch: EvaluationText, batch_idx: int) -> None:
        clean_test = batch.split == "test" and batch.attack is None
        for protocol in (self.protocol, *(BESIDE[self.protocol] if clean_test else ())):
            score = SCORERS[protocol](self.net, batch.tokens, self.recipe)
            self._log_test(f"{batch.split}/ppl_{protocol}{batch.suffix}", score.perplexity)
        if clean_test:
            self._log_test("test/ppl_unigram", batch.unigram_perplexity)

    def _log_test(self, name: str, value: float) -> None:
        self.log(name, value, on_step=False, on_epoch=True, batch_size=1)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        layers = [] if self.memory is None else list(self.memory.layers)
        if self.devices > 1 and self.is_shared:  # of all columns
            found: list[Any] = [None] * self.devices
            torch.distributed.all_gather_object(found, [layer.cpu() for layer in layers])
            layers = [torch.cat(parts) for parts in zip(*found, strict=True)]
        checkpoint[MEMORY] = layers

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self._remember(checkpoint[MEMORY])

    def on_train_start(self) -> None:
        # A checkpoint is read before the model has moved to its device.
        if self.memory is not None:
            layers = self.memory.layers
            if self.devices > 1 and layers and len(layers[0]) >= self.devices:
                rank, columns = self.global_rank, len(layers[0])
                own = slice(columns * rank // self.devices, columns * (rank + 1) // self.devices)
                layers = tuple(layer[own] for layer in layers)
            self._remember(layers)

    def _remember(self, layers: Sequence[Tensor]) -> None:
        memory = self.net.new_memory()
        if memory is not None:
            on_device = tuple(layer.to(self.device) for layer in layers)
            self.memory = replace(memory, layers=on_device)
