"""Configuration of the graph domain: dataclasses without torch.

The defaults of :class:`ModelConfig` are common to the nine published configurations
(`configs/GPS/*.yaml` of rampasek/GraphGPS at 2801570) or those of most of them; each set's own
values stand in its recipe.
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

__all__ = ["SPEC", "DatasetConfig", "ModelConfig", "RecipeConfig"]

Choice = tuple[str, ...]

METRICS: dict[str, Choice] = {
    "graph_regression": ("mae",),
    "graph_classification": ("accuracy",),
    "node_classification": ("accuracy", "f1"),
    "multilabel": ("ap",),
    "contact": ("mrr",),
}
"""By task, the metrics that a set may be selected by."""

FEATURES: Choice = ("atom", "categorical", "float")
ORIGINS: Choice = ("auto", "published", "generated")

GENERATED: Choice = ("pattern", "cluster")
"""Sets that are made by a published procedure, so that it can be run here."""


@dataclass
class DatasetConfig:
    """A set of graphs with fixed splits.

    Attributes:
        name: key of the set.
        version: raised when preparation changes what a model sees.
        task: what is predicted; loss and read-out follow from it. `graph_regression` (targets a
            graph), `graph_classification` (one class a graph), `node_classification` (one class a
            node), `multilabel` (targets a graph, each yes or no), `contact` (pairs of nodes).
        metric: what the epoch is selected by; one that `METRICS` allows for the task.
        features: how node and edge features come: `atom` (nine and three integers, as OGB codes
            molecules), `categorical` (one integer each), `float`.
        train: graphs in the training split.
        val: graphs in the validation split.
        test: graphs in the test split.
        node_types: number of node types, with `categorical` features.
        edge_types: number of edge types, with `categorical` features.
        node_width: numbers a node, with `float` features.
        edge_width: numbers an edge, with `float` features; None where edges carry nothing.
        classes: number of classes, with `graph_classification` and `node_classification`.
        targets: numbers a graph, with `graph_regression` and `multilabel`.
        rwse_steps: random-walk steps whose return probabilities are prepared; 0 prepares none.
        lap_pairs: eigenpairs of the Laplacian that are prepared; 0 prepares none.
        origin: `auto` reads the published files where they are and otherwise generates the sets
            that have a generator or downloads the others; `published` never generates; `generated`
            never looks for files.
        generator_seed: seed of the generator; the same for all runs, whatever their own seed.
        mean_nodes: published mean number of nodes a graph, over all splits.
        mean_edges: the same of directed edges.
        md5: checksums that the publishers state for their raw files, by file name.
        content: digests of the prepared graphs and targets, by split, where they are known.
        source: where the numbers and the files come from.
        licence: what is known of the licence.
    """

    name: str = ""
    version: str = "1"
    task: str = "graph_regression"
    metric: str = "mae"
    features: str = "categorical"
    train: int = 0
    val: int = 0
    test: int = 0
    node_types: int | None = None
    edge_types: int | None = None
    node_width: int | None = None
    edge_width: int | None = None
    classes: int | None = None
    targets: int | None = None
    rwse_steps: int = 0
    lap_pairs: int = 0
    origin: str = "auto"
    generator_seed: int = 0
    mean_nodes: float | None = field(default=None, metadata={"identity": False})
    mean_edges: float | None = field(default=None, metadata={"identity": False})
    md5: dict[str, str] = field(default_factory=dict, metadata={"identity": False})
    content: dict[str, str] = field(default_factory=dict, metadata={"identity": False})
    source: str = field(default="", metadata={"identity": False})
    licence: str = field(default="not stated", metadata={"identity": False})

    def __post_init__(self) -> None:
        refuse_unknown("dataset.task", self.task, METRICS)
        refuse_unknown("dataset.metric", self.metric, METRICS[self.task])
        refuse_unknown("dataset.features", self.features, FEATURES)
        refuse_unknown("dataset.origin", self.origin, ORIGINS)
        if self.origin == "generated" and self.name not in GENERATED:
            raise ValueError(
                f"dataset.origin=generated: {self.name} has no generator; those that have one: "
                f"{', '.join(GENERATED)}. Leave it at auto"
            )
        if self.lap_pairs == 1:
            raise ValueError(
                "dataset.lap_pairs=1 keeps nothing but the constant eigenvector; take 2 or more, "
                "or 0 for none"
            )
        for key in ("train", "val", "test"):
            refuse_unless(
                getattr(self, key) >= 1, f"dataset.{key}", getattr(self, key), "at least 1"
            )
        for key in ("rwse_steps", "lap_pairs"):
            refuse_unless(
                getattr(self, key) >= 0, f"dataset.{key}", getattr(self, key), "at least 0"
            )
        needed = {
            "categorical": ("node_types", "edge_types"),
            "float": ("node_width",),
            "atom": (),
        }[self.features]
        needed += {
            "graph_regression": ("targets",),
            "graph_classification": ("classes",),
            "node_classification": ("classes",),
            "multilabel": ("targets",),
            "contact": (),
        }[self.task]
        for key in needed:
            value = getattr(self, key)
            what = f"a number of at least 1 for task={self.task}, features={self.features}"
            refuse_unless(value is not None and value >= 1, f"dataset.{key}", value, what)

    @property
    def outputs(self) -> int | None:
        """Numbers that a head gives: one a target or class, one in all for two classes of nodes.

        None for `contact`, where it gives a vector of the model's width.
        """
        if self.task == "node_classification" and self.classes == 2:
            return 1
        return self.targets or self.classes


LOCAL: Choice = ("gine", "gatedgcn")
ENCODINGS: Choice = ("none", "rwse", "lappe")
NORMS: Choice = ("batch", "graph")
ACTIVATIONS: Choice = ("relu", "gelu")
POOLINGS: Choice = ("sum", "mean")
HEADS: Choice = ("graphgym", "san", "plain")
PACKINGS: Choice = ("dense", "grouped", "packed")


@dataclass
class ModelConfig:
    """Size, layers and read-out of the GPS model.

    Attributes:
        name: key of the model in the store and in tables of published numbers.
        layers: GPS layers.
        width: width of node and edge states.
        heads: attention heads.
        local: message passing beside the attention: `gine` or `gatedgcn` (with edge states).
        dropout: rate on everything but attention weights.
        attention_dropout: rate on attention weights.
        norm: after each part of a layer: `batch` over all nodes of a batch, or `graph` over all
            nodes and columns of one graph. Inside `gatedgcn` it is `batch` either way.
        activation: `relu` or `gelu`, in layers and in the heads `san` and `plain`.
        encoding: what is added to the node features: `rwse`, `lappe` or `none`.
        encoding_width: columns of the node state that the encoding takes.
        node_mean: taken off each column of float node features before anything else; empty takes
            nothing off.
        node_sd: what the columns are then divided by.
        edge_mean: the same of float edge features.
        edge_sd: the same of float edge features.
        pooling: how nodes become a graph, for tasks on graphs.
        head: `graphgym` (hidden layers of full width, each followed by an L2 normalisation),
            `san` (halves its width in each of two hidden layers) or `plain` (hidden layers of full
            width behind dropout, nothing normalised).
        head_layers: linear maps of the head; `san` has three.
        packing: how graphs of different sizes enter the attention. `dense` pads them to the
            largest of the batch, `grouped` pads graphs of similar size together, `packed` lays
            them end to end. Same numbers.
    """

    name: str = "gps"
    layers: int = 4
    width: int = 96
    heads: int = 4
    local: str = "gatedgcn"
    dropout: float = 0.0
    attention_dropout: float = 0.5
    norm: str = "batch"
    activation: str = "relu"
    encoding: str = "lappe"
    encoding_width: int = 16
    node_mean: list[float] = field(default_factory=list)
    node_sd: list[float] = field(default_factory=list)
    edge_mean: list[float] = field(default_factory=list)
    edge_sd: list[float] = field(default_factory=list)
    pooling: str = "mean"
    head: str = "graphgym"
    head_layers: int = 1
    packing: str = "grouped"

    def __post_init__(self) -> None:
        for key, allowed in (
            ("local", LOCAL),
            ("encoding", ENCODINGS),
            ("norm", NORMS),
            ("activation", ACTIVATIONS),
            ("pooling", POOLINGS),
            ("head", HEADS),
            ("packing", PACKINGS),
        ):
            refuse_unknown(f"model.{key}", getattr(self, key), allowed)
        for key in ("layers", "width", "heads", "head_layers"):
            refuse_unless(getattr(self, key) >= 1, f"model.{key}", getattr(self, key), "at least 1")
        multiple = f"a multiple of model.heads={self.heads}"
        refuse_unless(self.width % self.heads == 0, "model.width", self.width, multiple)
        for key in ("dropout", "attention_dropout"):
            rate = getattr(self, key)
            refuse_unless(0.0 <= rate < 1.0, f"model.{key}", rate, "at least 0 and below 1")
        if self.encoding != "none":
            fits = 1 <= self.encoding_width < self.width
            inside = f"at least 1 and below model.width={self.width}"
            refuse_unless(fits, "model.encoding_width", self.encoding_width, inside)
        if self.head == "san":
            refuse_unless(self.head_layers == 3, "model.head_layers", self.head_layers, "3 for san")
        for mean, sd in (("node_mean", "node_sd"), ("edge_mean", "edge_sd")):
            scales = getattr(self, sd)
            fits = len(scales) == len(getattr(self, mean)) and all(scale > 0.0 for scale in scales)
            refuse_unless(fits, f"model.{sd}", scales, f"above 0, and as many as model.{mean}")


SPEC = DomainSpec(
    schema={"dataset": DatasetConfig, "model": ModelConfig, "recipe": RecipeConfig},
    protocols={
        "graphgps": Protocol(
            "graphgps",
            1,
            "GraphGPS's published rule: epoch of the best validation metric, test at that epoch",
        ),
    },
)
