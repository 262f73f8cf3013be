"""Configuration of the segmentation domain: dataclasses without torch.

The defaults of :class:`ModelConfig` and :class:`SegmentationRecipe` are those of Segmenter with a
mask transformer on ViT-Ti/16 (rstrudel/segmenter at 20d1bfa: `segm/train.py`, `segm/config.yml`,
`segm/data/config/ade20k.py`); `conf/recipe/segmentation/` holds the others.
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

Choice = tuple[str, ...]
LAYOUTS: Choice = ("folders", "lists")
CORRUPTED: Choice = ("kamann16", "fan19", "elliptical19", "none")
DECODERS: Choice = ("mask_transformer", "linear")
DECODER_ATTENTION: Choice = ("variant", "standard")
RESIZES: Choice = ("bilinear", "bicubic")
NORMALISATIONS: Choice = ("imagenet", "half")


@dataclass
class DatasetConfig:
    """Pictures and masks of class indices. Numbers that only the files can tell are None.

    Every set has two splits: `train`, and `val`, on which the trained model is tested.

    Attributes:
        name: key in the store and in every table.
        version: raised when preparation changes what a model sees.
        folder: name of the folder that holds everything.
        layout: `folders` pairs the pictures of a folder with the masks of another by their stems;
            `lists` reads pairs from a text file, a picture and its mask a line.
        images: with `folders`, the folder of the pictures by split.
        masks: with `folders`, the folder of the masks by split.
        lists: with `lists`, the text file by split.
        classes: number of classes.
        class_names: their names, in order.
        reduce_zero_label: whether 0 in a mask means "other": it is ignored then, and 1 is class 0.
        ignored: further values of a mask (after that step) that are ignored, beside 255.
        pictures: published number of pictures by split; another number is refused.
        corrupted: which corrupted copies of the `val` pictures are scored, see the README:
            `kamann16`, `fan19`, `elliptical19` or none.
        corruption_seed: of the corrupted copies. Not the run's: all models see the same copy.
        url: archive to fetch, empty where there is none.
        sha256: checksum of the archive.
        source: where the numbers and the files come from.
        licence: what is known of the licence.
    """

    name: str = ""
    version: str = "1"
    folder: str = ""
    layout: str = "folders"
    images: dict[str, str] = field(
        default_factory=lambda: {"train": "images/training", "val": "images/validation"}
    )
    masks: dict[str, str] = field(
        default_factory=lambda: {"train": "annotations/training", "val": "annotations/validation"}
    )
    lists: dict[str, str] = field(default_factory=dict)
    classes: int | None = None
    class_names: list[str] = field(default_factory=list, metadata={"identity": False})
    reduce_zero_label: bool = False
    ignored: list[int] = field(default_factory=list)
    pictures: dict[str, int] = field(default_factory=dict)
    corrupted: str = "kamann16"
    corruption_seed: int = 0
    url: str = field(default="", metadata={"identity": False})
    sha256: str = field(default="", metadata={"identity": False})
    source: str = field(default="", metadata={"identity": False})
    licence: str = field(default="", metadata={"identity": False})

    def __post_init__(self) -> None:
        refuse_unknown("dataset.layout", self.layout, LAYOUTS)
        refuse_unknown("dataset.corrupted", self.corrupted, CORRUPTED)
        if self.classes is not None:
            fits = 2 <= self.classes <= 255
            refuse_unless(fits, "dataset.classes", self.classes, "from 2 to 255")
            named = len(self.class_names)
            refuse_unless(
                named in (0, self.classes),
                "dataset.class_names",
                self.class_names,
                f"dataset.classes={self.classes} names, or none",
            )
        values = all(0 <= value <= 255 for value in self.ignored)
        refuse_unless(values, "dataset.ignored", self.ignored, "values from 0 to 255")


@dataclass
class ModelConfig:
    """Size and form of Segmenter.

    Attributes:
        layers: pre-norm layers of the encoder.
        width: width of the residual stream, of encoder and decoder.
        heads: attention heads, of encoder and decoder.
        feedforward: hidden width of the feed-forward maps, of encoder and decoder.
        patch: side of a patch in pixels.
        class_token: whether the encoder has one; the decoder never sees it.
        dropout: rate on the encoder's projections and feed-forward maps and on its input.
        drop_path: stochastic depth of the encoder's last layer; rises linearly from 0.
        layer_scale: initial value of a learned factor on every channel of what a layer adds; None
            without it.
        norm_eps: of every LayerNorm of the encoder: 1e-6 in DeiT's weights.
        decoder: `mask_transformer`, or `linear`: one map from a patch to its classes.
        decoder_layers: layers of the mask transformer.
        decoder_dropout: rate in the mask transformer, attention weights included.
        decoder_drop_path: stochastic depth of its last layer.
        decoder_attention: whether the mask transformer uses the variant too, or `standard`.
        init: file with weights for the encoder, empty for none; `%attention%` in it stands for the
            name of the variant.
        init_allow: beginnings of parameter names that may be missing in that file, or in it and
            not here, or have another shape; all else is refused.
        position_resize: how a position embedding is brought to another number of patches.
    """

    layers: int = 12
    width: int = 192
    heads: int = 3
    feedforward: int = 768
    patch: int = 16
    class_token: bool = True
    dropout: float = 0.0
    drop_path: float = 0.1
    layer_scale: float | None = None
    norm_eps: float = 1e-6
    decoder: str = "mask_transformer"
    decoder_layers: int = 2
    decoder_dropout: float = 0.1
    decoder_drop_path: float = 0.0
    decoder_attention: str = "variant"
    init: str = ""
    init_allow: list[str] = field(default_factory=list)
    position_resize: str = "bilinear"

    def __post_init__(self) -> None:
        for key, allowed in (
            ("decoder", DECODERS),
            ("decoder_attention", DECODER_ATTENTION),
            ("position_resize", RESIZES),
        ):
            refuse_unknown(f"model.{key}", getattr(self, key), allowed)
        for key in ("layers", "width", "heads", "feedforward", "patch", "decoder_layers"):
            value = getattr(self, key)
            refuse_unless(value >= 1, f"model.{key}", value, "at least 1")
        for key in ("dropout", "drop_path", "decoder_dropout", "decoder_drop_path"):
            rate = getattr(self, key)
            refuse_unless(0.0 <= rate < 1.0, f"model.{key}", rate, "at least 0 and below 1")
        multiple = f"a multiple of model.heads={self.heads}"
        refuse_unless(self.width % self.heads == 0, "model.width", self.width, multiple)
        if self.init_allow and not self.init:
            raise ValueError(
                f"model.init_allow={self.init_allow} must be empty without model.init: there is "
                "no file whose parameters could be allowed to differ"
            )

    @property
    def name(self) -> str:
        """Key of the model in the store and in tables of published numbers.

        What differs from the published form is part of it, an encoder from scratch too.
        """
        size = (self.layers, self.width, self.heads, self.feedforward, self.patch)
        parts = [PUBLISHED.get(size, f"segmenter_{self.layers}x{self.width}")]
        parts += [self.decoder] if self.decoder != "mask_transformer" else []
        parts += [] if self.class_token else ["no_cls"]
        parts += [] if self.init else ["scratch"]
        return "_".join(parts)


PUBLISHED = {
    (12, 192, 3, 768, 16): "segmenter_vit_ti16",
    (12, 384, 6, 1536, 16): "segmenter_vit_s16",
    (12, 768, 12, 3072, 16): "segmenter_vit_b16",
    (24, 1024, 16, 4096, 16): "segmenter_vit_l16",
}
"""Names of the published sizes: layers, width, heads, feed-forward width, patch."""


@dataclass
class SegmentationRecipe(RecipeConfig):
    """A recipe over an endless stream of crops.

    `max_epochs` counts validations: an epoch is `steps_per_epoch` optimizer steps, wherever in a
    pass through the pictures they begin.

    Attributes:
        steps_per_epoch: optimizer steps between two validations.
        crop: side of a training crop and of the window of the evaluation, in pixels.
        long_side: a picture is resized to fit into `long_side` by `short_side`, aspect ratio kept;
            for training, this frame times a factor.
        short_side: see `long_side`.
        scale_low: smallest factor of the frame while training.
        scale_high: largest factor.
        max_class_share: a crop is drawn again while one class covers this share of its labelled
            pixels or more; 1 never draws again.
        crop_redraws: how often at most.
        flip: probability of a horizontal flip.
        photometric: whether brightness, contrast, saturation and hue are distorted.
        normalisation: `imagenet` (what DeiT's weights expect) or `half` (mean and standard
            deviation 127.5).
        loader_workers: processes that prepare training crops; 0 prepares them in the run's own.
    """

    steps_per_epoch: int = 4000
    crop: int = 512
    long_side: int = 2048
    short_side: int = 512
    scale_low: float = 0.5
    scale_high: float = 2.0
    max_class_share: float = 0.75
    crop_redraws: int = 10
    flip: float = 0.5
    photometric: bool = True
    normalisation: str = "imagenet"
    loader_workers: int = field(default=0, metadata={"identity": False})

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse_unknown("recipe.normalisation", self.normalisation, NORMALISATIONS)
        for key in ("steps_per_epoch", "crop", "long_side", "short_side"):
            value = getattr(self, key)
            refuse_unless(value >= 1, f"recipe.{key}", value, "at least 1")
        for key in ("crop_redraws", "loader_workers"):
            value = getattr(self, key)
            refuse_unless(value >= 0, f"recipe.{key}", value, "at least 0")
        wide = f"at least recipe.short_side={self.short_side}"
        refuse_unless(self.long_side >= self.short_side, "recipe.long_side", self.long_side, wide)
        low, high = self.scale_low, self.scale_high
        refuse_unless(low > 0.0, "recipe.scale_low", low, "above 0")
        refuse_unless(high >= low, "recipe.scale_high", high, f"at least recipe.scale_low={low}")
        share = self.max_class_share
        refuse_unless(0.0 < share <= 1.0, "recipe.max_class_share", share, "above 0, at most 1")
        refuse_unless(0.0 <= self.flip <= 1.0, "recipe.flip", self.flip, "from 0 to 1")

    def steps_in_epoch(self, train: int) -> int:
        return self.steps_per_epoch


OVERLAP = 32
"""Pixels that neighbouring windows share under `slide_overlap` and `multiscale`."""

SCALES: dict[str, tuple[float, ...]] = {
    "slide": (1.0,),
    "slide_overlap": (1.0,),
    "multiscale": (0.5, 0.75, 1.0, 1.25, 1.5, 1.75),
}
"""By protocol, the factors on the frame that a picture is resized to before it is tested."""

SPEC = DomainSpec(
    schema={"dataset": DatasetConfig, "model": ModelConfig, "recipe": SegmentationRecipe},
    protocols={
        "slide": Protocol(
            "slide",
            1,
            "single scale, windows side by side (window 512, stride 512), last weights",
        ),
        "slide_overlap": Protocol(
            "slide_overlap",
            1,
            "single scale, windows overlap by 32 pixels (window 512, stride 480), last weights",
        ),
        "multiscale": Protocol(
            "multiscale",
            1,
            "six scales from 0.5 to 1.75, each also mirrored, windows overlap by 32 pixels",
        ),
    },
)
