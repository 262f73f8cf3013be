"""Configuration of the toy domain: dataclasses without torch.

What the paper states is fixed in the code; keys exist for what it varies or leaves open. Where each
default comes from stands in the README.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from domains.contract import (
    DomainSpec,
    Grid,
    Protocol,
    RecipeConfig,
    Together,
    refuse_unless,
)

__all__ = [
    "CHOICES",
    "OUTCOMES",
    "SPEC",
    "Choices",
    "DatasetConfig",
    "ModelConfig",
    "RecipeConfig",
]

OUTCOMES = ("test/correct", "test/biased", "test/degenerate", "test/other")
"""One of them is 100 in each run, the others are 0; success first."""


@dataclass
class DatasetConfig:
    """One data set of the task, drawn anew from its seed.

    Attributes:
        name: of the task.
        version: raised when the generator's numbers change.
        seed: of the covariance, the biased mean, all samples, and the order of the batches.
        train: training samples.
        test: test samples.
        length: tokens of a sample.
        source: where the generator is described.
    """

    name: str = "toy"
    version: str = "1"
    seed: int = 0
    train: int = 2000
    test: int = 1000
    length: int = 20
    source: str = field(default="", metadata={"identity": False})

    def __post_init__(self) -> None:
        refuse_unless(self.seed >= 0, "dataset.seed", self.seed, "a whole number of at least 0")
        for key in ("train", "test"):
            value = getattr(self, key)
            refuse_unless(value >= 1, f"dataset.{key}", value, "at least 1")
        refuse_unless(self.length >= 2, "dataset.length", self.length, "at least 2")


@dataclass
class ModelConfig:
    """The one-layer Transformer; its width is that of a token.

    Attributes:
        feedforward: hidden width of the feed-forward map.
        token_sd: standard deviation of the initial [CLS] token and positions.
    """

    feedforward: int = 20
    token_sd: float = 0.02

    def __post_init__(self) -> None:
        width = self.feedforward
        refuse_unless(width >= 1, "model.feedforward", width, "at least 1")
        refuse_unless(self.token_sd >= 0.0, "model.token_sd", self.token_sd, "a number from 0")

    @property
    def name(self) -> str:
        """Key of the model in the store and in tables of published numbers."""
        return "transformer_1layer"


@dataclass(frozen=True)
class Choices:
    """What a protocol decides where the paper is silent.

    Attributes:
        norm: `pre`, `post` or `none`: where the layer normalises.
        test_positions: `normal` as in training, or `uniform` over all tokens.
        test_biased: probability that a test sample has the biased answer; 0.5 in training.
    """

    norm: str = "pre"
    test_positions: str = "normal"
    test_biased: float = 0.0


CHOICES = {
    "paper": Choices(),
    "post_norm": Choices(norm="post"),
    "no_norm": Choices(norm="none"),
    "test_uniform": Choices(test_positions="uniform"),
    "test_as_train": Choices(test_biased=0.5),
}
"""What each protocol decides."""

SPEC = DomainSpec(
    schema={"dataset": DatasetConfig, "model": ModelConfig, "recipe": RecipeConfig},
    protocols={
        "paper": Protocol("paper", 1, "pre-norm; tested without the bias, at the same positions"),
        "post_norm": Protocol(
            "post_norm", 1, "as paper, LayerNorms behind the additions", note="post-norm"
        ),
        "no_norm": Protocol("no_norm", 1, "as paper, no LayerNorm at all", note="no LayerNorm"),
        "test_uniform": Protocol(
            "test_uniform", 1, "as paper, tested at uniform positions", note="uniform positions"
        ),
        "test_as_train": Protocol(
            "test_as_train",
            1,
            "as paper, half of the test samples biased as in training",
            note="half of the test samples are biased",
        ),
    },
    grid=Grid(
        axes=("recipe.optimizer.lr", "recipe.optimizer.weight_decay"),
        replicates=("dataset.seed",),
        outcomes=OUTCOMES,
    ),
    together=Together(
        keys=("recipe.optimizer.lr", "recipe.optimizer.weight_decay", "recipe.qk_lr_ratio"),
        size=75,
        excluded=("qk_clip", "sigma_reparam"),  # which act after optimizer steps
    ),
)
