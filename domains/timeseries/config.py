"""Configuration of the time-series domain: dataclasses without torch.

Every default of :class:`ModelConfig` is TSLib's (`scripts/classification/Transformer.sh` and
`run.py` of thuml/Time-Series-Library at 4e938a1), except the options of the [CLS] read-out, whose
code was never published.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from domains.contract import (
    DomainSpec,
    Protocol,
    RecipeConfig,
    refuse_unknown,
    refuse_unless,
)

__all__ = ["ON_TEST", "SPEC", "DatasetConfig", "ModelConfig", "RecipeConfig"]


@dataclass
class DatasetConfig:
    """A set of the UEA archive. Numbers that only the files can tell are None.

    Attributes:
        name: as the archive spells it; folder and file names follow it.
        version: raised when preparation changes what a model sees.
        channels: values a time step.
        classes: number of classes.
        length: steps of the longest series of both splits.
        train_length: steps of the longest training series, None when it is `length`.
        shortest: steps of the shortest series, None where all have `length`.
        train: series in the TRAIN file.
        test: series in the TEST file.
        folds: under `holdout`, number of cross-validation folds that choose the number of
            epochs; 0 takes one stratified validation part of the training series instead.
        validation: share of the training series in that validation part.
        instance_norm: normalise each series by itself after the set was standardised; see the
            README for what either protocol makes of it.
        sha256: checksums of the published files, by split (`TRAIN`, `TEST`).
        source: where the numbers and the files come from.
        licence: what is known of the licence.
    """

    name: str = ""
    version: str = "1"
    channels: int | None = None
    classes: int | None = None
    length: int | None = None
    train_length: int | None = None
    shortest: int | None = None
    train: int | None = None
    test: int | None = None
    folds: int = 0
    validation: float = 0.2
    instance_norm: bool = False
    sha256: dict[str, str] = field(default_factory=dict, metadata={"identity": False})
    source: str = field(default="", metadata={"identity": False})
    licence: str = field(default="not stated by the archive", metadata={"identity": False})

    def __post_init__(self) -> None:
        if self.folds == 1 or self.folds < 0:
            raise ValueError(f"dataset.folds={self.folds} must be 0 (no folds) or at least 2")
        if self.train is not None and self.folds > self.train:
            raise ValueError(
                f"dataset.folds={self.folds} must be at most the number of training series, "
                f"here {self.train}"
            )
        if not 0.0 < self.validation < 1.0:
            raise ValueError(f"dataset.validation={self.validation} must lie between 0 and 1")


Choice = tuple[str, ...]
READOUTS: Choice = ("cls", "flat")
TOKEN_INITS: Choice = ("normal", "zeros")
HEADS: Choice = ("gelu", "linear")


@dataclass
class ModelConfig:
    """Size and read-out of the Transformer.

    Attributes:
        layers: encoder layers.
        width: width of the residual stream.
        feedforward: hidden width of the feed-forward maps.
        heads: attention heads.
        dropout: rate on embedding, attention weights, attention output, both feed-forward maps
            and read-out.
        readout: `cls` classifies from a token put before the embedded series, `flat` from all
            steps side by side.
        token_init: initial value of the token: `normal` (sd 0.02) or `zeros`.
        token_dropout: whether the embedding's dropout hits the token as well.
        token_position: whether the token takes position 0 and shifts the series to 1..L;
            otherwise it has no position code.
        head: classifier on the token: `gelu` mirrors the flat path (GELU, dropout, linear map),
            `linear` is the linear map alone.
    """

    layers: int = 3
    width: int = 128
    feedforward: int = 256
    heads: int = 8
    dropout: float = 0.1
    readout: str = "cls"
    token_init: str = "normal"
    token_dropout: bool = False
    token_position: bool = False
    head: str = "gelu"

    def __post_init__(self) -> None:
        for key, allowed in (("readout", READOUTS), ("token_init", TOKEN_INITS), ("head", HEADS)):
            refuse_unknown(f"model.{key}", getattr(self, key), allowed)
        for key in ("layers", "heads", "feedforward", "width"):
            value = getattr(self, key)
            refuse_unless(value >= 1, f"model.{key}", value, "at least 1")
        if self.width % 2:
            raise ValueError(
                f"model.width={self.width} must be even: positions are sine and cosine"
            )
        multiple = f"a multiple of model.heads={self.heads}"
        refuse_unless(self.width % self.heads == 0, "model.width", self.width, multiple)
        rate = self.dropout
        refuse_unless(0.0 <= rate < 1.0, "model.dropout", rate, "at least 0 and below 1")

    @property
    def name(self) -> str:
        """Key of the model in the store and in tables of published numbers."""
        return f"transformer_{self.readout}"


ON_TEST = "selected on the test split"

SPEC = DomainSpec(
    schema={"dataset": DatasetConfig, "model": ModelConfig, "recipe": RecipeConfig},
    protocols={
        "holdout": Protocol(
            "holdout",
            1,
            "epoch chosen on held-out training series, statistics from training, padding masked",
        ),
        "tslib": Protocol(
            "tslib",
            1,
            "TSLib's published rule: epoch chosen on the test split, an upper bound",
            note=ON_TEST,
        ),
    },
)
