"""Configuration of the language domain: dataclasses without torch.

The defaults of :class:`ModelConfig` and :class:`LanguageRecipe` are those of the 44M Transformer
(IDSIA/lmtool-fwp at 0159201, `example_scripts/2021_linear_transformers_are_secretly_fwps/
small_standard_transformer_baseline.sh`); `conf/recipe/language/` holds the other published models.
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
SPLITS: Choice = ("official", "valid_as_train")
TOKENIZERS: Choice = ("words", "bpe")
ATTACKS: Choice = ("textattack", "token", "none")
FAMILIES: Choice = ("transformer", "transformer_xl")
POSITIONS: Choice = ("sinusoidal", "learned", "rotary")
RELATIVE: Choice = ("content", "separate", "unscaled")

ATTACK_RATES = (1.5, 2.5, 5.0)
"""Nominal rates of the word swap attack, in percent."""


@dataclass
class DatasetConfig:
    """A text in the layout of WikiText. Numbers that only the files can tell are None.

    Attributes:
        name: key in the store and in every table.
        version: raised when preparation changes what a model sees.
        folder: name of the folder that holds `wiki.{train,valid,test}.tokens`.
        split: `official` trains on the training file and selects on the validation file;
            `valid_as_train` trains on the validation articles, which is never to be compared with
            numbers of the whole set.
        tokenizer: `words` splits at white space; `bpe` learns byte pairs on the training text.
        bpe_size: entries of the vocabulary under `tokenizer=bpe`.
        vocabulary: entries of the word vocabulary, `<eos>` included.
        tokens: tokens of each file (`train`, `valid`, `test`), one `<eos>` a line included.
        attack: which contaminated copies of the test text are scored: words swapped as TextAttack
            does, each eligible token with the probability of the rate, or none.
        attack_seed: of the contaminated copies. Not the run's: all models see the same copy.
        url: zip with the three files, empty where there is none to fetch.
        sha256: checksums of the published files (`train`, `valid`, `test`) and of the zip
            (`archive`).
        source: where the numbers and the files come from.
        licence: of the text.
    """

    name: str = ""
    version: str = "1"
    folder: str = "wikitext-103"
    split: str = "official"
    tokenizer: str = "words"
    bpe_size: int = 16384
    vocabulary: int | None = None
    tokens: dict[str, int] = field(default_factory=dict)
    attack: str = "textattack"
    attack_seed: int = 0
    url: str = field(default="", metadata={"identity": False})
    sha256: dict[str, str] = field(default_factory=dict, metadata={"identity": False})
    source: str = field(default="", metadata={"identity": False})
    licence: str = field(default="CC BY-SA", metadata={"identity": False})

    def __post_init__(self) -> None:
        for key, allowed in (("split", SPLITS), ("tokenizer", TOKENIZERS), ("attack", ATTACKS)):
            refuse_unknown(f"dataset.{key}", getattr(self, key), allowed)
        refuse_unless(self.bpe_size >= 512, "dataset.bpe_size", self.bpe_size, "at least 512")
        # Perplexities of other data never stand under the name of the published one.
        for key, value in (("split", "valid_as_train"), ("tokenizer", "bpe")):
            if (getattr(self, key) == value) != (value in self.name):
                raise ValueError(
                    f"dataset.name={self.name!r} must hold '{value}' with dataset.{key}={value}, "
                    "and must not without: its perplexities stand in a column of their own"
                )


@dataclass
class ModelConfig:
    """Size and form of the model.

    Attributes:
        family: `transformer` has absolute positions and no memory; `transformer_xl` has relative
            positions and reads the segment before.
        layers: post-norm layers.
        width: width of the residual stream and of the embedding.
        heads: attention heads.
        head_width: width of a head.
        feedforward: hidden width of the feed-forward maps.
        dropout: rate on the embedding, both sub-layers, inside the feed-forward maps, on the last
            output and, in Transformer-XL, on the distance codes.
        attention_dropout: rate on the attention weights.
        positions: of `family=transformer`: `sinusoidal` codes counted down to the last token,
            `learned` codes counted from the first, or `rotary` queries and keys.
        relative: of `family=transformer_xl`: how a variant enters where the logit has a content
            and a position term. `separate` gives both keys to the variant; `content` gives it
            the content term and keeps 1/sqrt(d) on the position term; `unscaled` leaves the
            position term without a factor. The same for `standard`, see the README.
        memory: positions of the segments before that are read while training.
        cutoffs: first words of the tail clusters of the adaptive softmax; those at or beyond the
            vocabulary's end fall away, and without any the softmax is an ordinary one.
        tied: whether the embedding is the output weight as well.
    """

    family: str = "transformer"
    layers: int = 16
    width: int = 128
    heads: int = 8
    head_width: int = 16
    feedforward: int = 2048
    dropout: float = 0.1
    attention_dropout: float = 0.0
    positions: str = "sinusoidal"
    relative: str = "separate"
    memory: int = 0
    cutoffs: list[int] = field(default_factory=lambda: [20_000, 40_000, 200_000])
    tied: bool = True

    def __post_init__(self) -> None:
        for key, allowed in (
            ("family", FAMILIES),
            ("positions", POSITIONS),
            ("relative", RELATIVE),
        ):
            refuse_unknown(f"model.{key}", getattr(self, key), allowed)
        for key in ("layers", "width", "heads", "head_width", "feedforward"):
            value = getattr(self, key)
            refuse_unless(value >= 1, f"model.{key}", value, "at least 1")
        for key in ("dropout", "attention_dropout"):
            rate = getattr(self, key)
            refuse_unless(0.0 <= rate < 1.0, f"model.{key}", rate, "at least 0 and below 1")
        even = "even: positions are sine and cosine"
        refuse_unless(self.width % 2 == 0, "model.width", self.width, even)
        rising = all(a < b for a, b in zip([0, *self.cutoffs], self.cutoffs, strict=False))
        refuse_unless(rising, "model.cutoffs", self.cutoffs, "positive and rising")
        self._refuse_other_family()

    def _refuse_other_family(self) -> None:
        """What belongs to one family is refused in the other."""
        if self.family == "transformer":
            without = "0 with model.family=transformer; model.family=transformer_xl has a memory"
            refuse_unless(self.memory == 0, "model.memory", self.memory, without)
            default = "'separate' with model.family=transformer, which has no position term"
            refuse_unless(self.relative == "separate", "model.relative", self.relative, default)
        else:
            refuse_unless(self.memory >= 0, "model.memory", self.memory, "at least 0")
            default = "'sinusoidal' with model.family=transformer_xl, whose positions are relative"
            refuse_unless(
                self.positions == "sinusoidal", "model.positions", self.positions, default
            )
        if self.positions == "rotary":
            pairs = "even with model.positions=rotary: channels are turned in pairs"
            refuse_unless(self.head_width % 2 == 0, "model.head_width", self.head_width, pairs)

    @property
    def name(self) -> str:
        """Key of the model in the store and in tables of published numbers.

        What differs from the published form is part of it.
        """
        size = (self.layers, self.width, self.heads, self.head_width, self.feedforward)
        parts = [PUBLISHED.get((self.family, *size), f"{self.family}_{self.layers}x{self.width}")]
        parts += [self.positions] if self.positions != "sinusoidal" else []
        parts += [self.relative] if self.relative != "separate" else []
        parts += [] if self.tied else ["untied"]
        return "_".join(parts)


PUBLISHED = {
    ("transformer", 16, 128, 8, 16, 2048): "transformer_small",
    ("transformer", 16, 256, 8, 32, 2048): "transformer_medium",
    ("transformer_xl", 16, 410, 10, 41, 2100): "transformer_xl",
}
"""Names of the published models: family, layers, width, heads, head width, feed-forward width."""


@dataclass
class LanguageRecipe(RecipeConfig):
    """A recipe over an endless stream of text.

    `max_epochs` counts validations: an epoch is `steps_per_epoch` optimizer steps, wherever in the
    text they begin. `batch_size` is the number of columns that the stream is cut into.

    Attributes:
        segment: tokens of a column that one step reads.
        steps_per_epoch: optimizer steps between two validations.
        window: tokens of the sliding window of the evaluation.
        evaluation_batch: columns that a stream is cut into where it is scored in segments.
    """

    segment: int = 256
    steps_per_epoch: int = 4000
    window: int = 256
    evaluation_batch: int = 10

    def __post_init__(self) -> None:
        super().__post_init__()
        for key in ("segment", "steps_per_epoch", "window", "evaluation_batch"):
            value = getattr(self, key)
            refuse_unless(value >= 1, f"recipe.{key}", value, "at least 1")

    def steps_in_epoch(self, train: int) -> int:
        return self.steps_per_epoch


SPEC = DomainSpec(
    schema={"dataset": DatasetConfig, "model": ModelConfig, "recipe": LanguageRecipe},
    protocols={
        "sliding": Protocol(
            "sliding",
            1,
            "test by a sliding window: every position has the whole window before it",
        ),
        "xl": Protocol(
            "xl",
            1,
            "test with memory: 64 new tokens, 640 remembered, distances up to 400, equal context",
        ),
        "segments": Protocol(
            "segments",
            1,
            "test in segments: fast, and perplexities above those of the other protocols",
        ),
    },
)
