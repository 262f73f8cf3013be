"""Batches of a text, and the texts that are scored."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from domains.base import BenchmarkData
from domains.common.samplers import Remaining, made_up_batch
from domains.contract import DataInfo
from domains.language import corpus as corpora
from domains.language.config import DatasetConfig
from domains.language.corpus import Corpus
from domains.language.evaluate import unigram
from domains.language.sources import FILES
from domains.language.stream import Batch, EndlessOrder, Segments
from domains.language.tiny import tiny_corpus

TINY_STEPS = 2
"""Segments of made-up data, and steps of its epochs."""

TINY_WINDOWS = 2
"""Windows of made-up test data beyond the first."""


@dataclass
class EvaluationText:
    """A text that is scored with the kept weights.

    Attributes:
        split: `val` or `test`.
        attack: nominal rate of the word swap attack in percent, None for the clean text.
        tokens: (n,) int64.
        unigram_perplexity: of the frequencies in the training text, for the same tokens.
    """

    split: str
    attack: float | None
    tokens: Tensor
    unigram_perplexity: float

    @property
    def suffix(self) -> str:
        """What tells the names of its metrics from those of the clean text (`_attack1.5`)."""
        return "" if self.attack is None else f"_attack{self.attack}"


class LanguageData(BenchmarkData):
    """Training reads an endless stream, validation segments, the test whole texts.

    The training loader of epoch e reads segments e * S to (e + 1) * S - 1 of the stream, S being
    the steps of an epoch, and goes on at the stream's start after its end: the epochs of the
    engine are intervals between validations, not passes. No order depends on the seed.

    Args:
        corpus: the text.
        info: where it comes from.
        columns: that the training stream is cut into.
        segment: tokens of a column in a batch.
        steps_per_epoch: batches of an epoch.
        evaluation_columns: that `val` is cut into.
    """

    def __init__(
        self,
        corpus: Corpus,
        info: DataInfo,
        *,
        columns: int,
        segment: int,
        steps_per_epoch: int,
        evaluation_columns: int,
    ) -> None:
        super().__init__()
        self.info = info
        self.corpus = corpus
        self.steps_per_epoch = steps_per_epoch
        self.train = Segments("train", corpus.streams["train"], columns=columns, length=segment)
        self.val = Segments(
            "val", corpus.streams["val"], columns=evaluation_columns, length=segment
        )

    def train_dataloader(self) -> DataLoader[Batch]:
        order = EndlessOrder(len(self.train), self.steps_per_epoch, self.first_epoch)
        return _loader(self.train, Remaining(order, self.first_epoch, self.first_batch))

    def val_dataloader(self) -> DataLoader[Batch]:
        return _loader(self.val)

    def test_dataloader(self) -> DataLoader[EvaluationText]:
        """One text an item: `test`, `val`, then the contaminated copies."""
        return _loader(_Texts(self.corpus))


class _Texts(Dataset[EvaluationText]):
    def __init__(self, corpus: Corpus) -> None:
        self.counts = corpus.counts
        self.texts = [
            ("test", None, corpus.streams["test"]),
            ("val", None, corpus.streams["val"]),
            *(("test", rate, tokens) for rate, tokens in corpus.attacked.items()),
        ]

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, number: int) -> EvaluationText:
        split, attack, stream = self.texts[number]
        tokens = torch.from_numpy(stream.astype(np.int64))
        return EvaluationText(split, attack, tokens, unigram(self.counts, stream).perplexity)


def _loader(data: Any, order: Any = None) -> DataLoader[Any]:
    # Own generator: a loader draws a number at the start of each epoch, and taken from the global
    # stream it would move the dropout masks.
    generator = torch.Generator().manual_seed(0)
    return DataLoader(data, batch_size=None, sampler=order, generator=generator)


def known_sizes(config: DatasetConfig) -> dict[str, int] | None:
    """`DataInfo.sizes` from the configuration alone, None if only the files can tell."""
    if config.split != "official" or config.tokenizer != "words" or config.vocabulary is None:
        return None
    if not config.tokens.keys() >= FILES.keys():
        return None
    train, val, test = (config.tokens[key] for key in ("train", "valid", "test"))
    return {"vocabulary": config.vocabulary, "train": train, "val": val, "test": test}


def build(cfg: Any) -> LanguageData:
    """Data of the configured text.

    Raises:
        DataUnavailable, DataCorrupt: see :func:`domains.language.corpus.load`.
        ValueError: the text is too short for the recipe.
    """
    recipe = cfg.recipe
    return _data(cfg, corpora.load(cfg.dataset), recipe.batch_size, recipe.steps_per_epoch)


def tiny(cfg: Any) -> LanguageData:
    """Made-up data: segments as long as the recipe's, but few and narrow, and few words."""
    recipe = cfg.recipe
    columns = made_up_batch(recipe.batch_size)
    longest = max(recipe.window + TINY_WINDOWS + 1, 2 * recipe.evaluation_batch)
    sizes = {
        "train": columns * (recipe.segment * TINY_STEPS + 1),
        "val": longest,
        "test": longest,
    }
    corpus = tiny_corpus(sizes, cfg.dataset.attack, cfg.dataset.attack_seed)
    return _data(cfg, corpus, columns, min(recipe.steps_per_epoch, TINY_STEPS))


def _data(cfg: Any, corpus: Corpus, columns: int, steps: int) -> LanguageData:
    info = DataInfo(
        kind=corpus.kind,
        version=cfg.dataset.version,
        fingerprint=corpus.fingerprint,
        source=corpus.source,
        sizes={
            "vocabulary": len(corpus.counts),
            **{split: len(stream) for split, stream in corpus.streams.items()},
        },
        notes=corpus.notes,
    )
    return LanguageData(
        corpus,
        info,
        columns=columns,
        segment=cfg.recipe.segment,
        steps_per_epoch=steps,
        evaluation_columns=cfg.recipe.evaluation_batch,
    )
