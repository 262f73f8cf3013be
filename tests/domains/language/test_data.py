"""Loaders: what a run reads, in which order, and that a resumed run reads the same."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import lightning
import numpy as np
import pytest
import torch
from torch import Tensor

from domains.language import data as data_module
from domains.language import evaluate
from domains.language.config import DatasetConfig, LanguageRecipe, ModelConfig
from domains.language.data import LanguageData, build, known_sizes, tiny
from domains.language.stream import Batch

from .fake_model import MeanModel
from .test_sources import dataset

ARTICLE = " \n = Title {n} = \n \n The cat {n} sat on the <unk> of AAA . \n = = Part = = \n \n"


def recipe(**options: Any) -> LanguageRecipe:
    sizes = {"segment": 8, "steps_per_epoch": 5, "window": 8, "evaluation_batch": 3}
    return LanguageRecipe(**{"name": "made", "max_epochs": 3, "batch_size": 4, **sizes, **options})


@dataclass
class Config:
    """What the data reads of the engine's configuration."""

    dataset: DatasetConfig = field(
        default_factory=lambda: DatasetConfig(name="made", folder="made-1")
    )
    model: ModelConfig = field(default_factory=ModelConfig)
    recipe: LanguageRecipe = field(default_factory=recipe)
    seed: int = 0


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Config:
    """A made-up text in DATA_DIR: 500 training tokens, 250 each to select and to test."""
    folder = tmp_path / "data" / "made-1"
    folder.mkdir(parents=True)
    for split, articles in (("train", 20), ("valid", 10), ("test", 10)):
        text = "".join(ARTICLE.format(n=n) for n in range(articles))
        (folder / f"wiki.{split}.tokens").write_text(text)
    monkeypatch.setenv("DATA_DIR", str(tmp_path / "data"))
    return Config()


def numbers_of(batches: list[Batch]) -> list[Any]:
    return [(b.inputs.tolist(), b.targets.tolist(), b.split, b.reset) for b in batches]


def test_training_reads_the_stream_on_and_on(made):
    """125 tokens a column: 124 targets in 16 segments, the last one of 4."""
    data = build(made)
    assert len(data.train) == 16
    read = []
    loader = data.train_dataloader()
    for epoch in range(4):
        loader.sampler.set_epoch(epoch)
        assert len(loader) == 5
        read += list(loader)
    stream = torch.from_numpy(data.corpus.streams["train"].astype(np.int64)).view(4, 125)
    for step, batch in enumerate(read):
        start = 8 * (step % 16)
        assert torch.equal(batch.inputs, stream[:, start : min(start + 8, 124)])
        assert torch.equal(batch.targets, stream[:, start + 1 : min(start + 8, 124) + 1])
        assert batch.reset is (step in (0, 16))
    assert read[15].inputs.shape == (4, 4)


def test_a_loader_made_for_a_later_epoch_starts_there(made):
    data = build(made)
    loader = data.train_dataloader()
    loader.sampler.set_epoch(2)
    expected = numbers_of(list(loader))
    resumed = build(made)
    resumed.first_epoch = 2
    assert numbers_of(list(resumed.train_dataloader())) == expected


class Reader(lightning.LightningModule):
    """Keeps what it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(()))
        self.seen: list[Batch] = []
        self.validated: list[Batch] = []
        self.tested: list[Any] = []

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        self.seen.append(batch)
        return self.weight * 1.0

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        self.validated.append(batch)

    def test_step(self, text: Any, batch_idx: int) -> None:
        self.tested.append(text)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def trainer(epochs: int) -> lightning.Trainer:
    return lightning.Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
    )


def test_a_resumed_fit_reads_what_an_uninterrupted_one_reads(made, tmp_path):
    whole = Reader()
    trainer(3).fit(whole, datamodule=build(made))
    first = trainer(1)
    first.fit(Reader(), datamodule=build(made))
    first.save_checkpoint(tmp_path / "resume.ckpt")
    rest, data = Reader(), build(made)
    data.first_epoch = 1
    trainer(3).fit(rest, datamodule=data, ckpt_path=tmp_path / "resume.ckpt")
    assert numbers_of(rest.seen) == numbers_of(whole.seen)[5:]
    assert len(rest.seen) == 10


def test_validation_and_test_read_what_is_scored(made):
    reader, data = Reader(), build(made)
    fit = trainer(1)
    fit.fit(reader, datamodule=data)
    fit.test(reader, datamodule=data, verbose=False)
    assert [batch.inputs.shape for batch in reader.validated] == [(3, 8)] * 10 + [(3, 2)]
    assert [batch.reset for batch in reader.validated] == [True] + [False] * 10
    assert {batch.split for batch in reader.validated} == {"val"}
    names = [(text.split, text.suffix) for text in reader.tested]
    assert names == [
        ("test", ""),
        ("val", ""),
        ("test", "_attack1.5"),
        ("test", "_attack2.5"),
        ("test", "_attack5.0"),
    ]
    clean, _, *copies = (text.tokens for text in reader.tested)
    assert clean.dtype == torch.int64
    assert clean.tolist() == data.corpus.streams["test"].tolist()
    for copy in copies:
        assert len(copy) == len(clean)
        assert (copy != clean).any()


def test_validation_batches_give_the_score_of_the_whole_text(made):
    data, model = build(made), MeanModel(40, memory=5).eval()
    nats, positions, memory = 0.0, 0, None
    for batch in data.val_dataloader():
        memory = model.new_memory() if batch.reset else memory
        each, memory = model.log_likelihood(batch.inputs, batch.targets, memory=memory)
        nats, positions = nats - each.double().sum().item(), positions + each.numel()
    tokens = torch.from_numpy(data.corpus.streams["val"].astype(np.int64))
    score = evaluate.segments(model, tokens, length=8, columns=3)
    assert score.positions == positions
    assert score.nats == pytest.approx(nats, abs=1e-4)


def test_unigram_perplexity_stands_beside_each_text(made):
    data = build(made)
    for text in data.test_dataloader():
        expected = evaluate.unigram(data.corpus.counts, text.tokens.numpy().astype(np.int32))
        assert text.unigram_perplexity == expected.perplexity


def test_reading_leaves_the_global_generator_alone(made):
    data = build(made)
    state = torch.get_rng_state()
    for loader in (data.train_dataloader(), data.val_dataloader(), data.test_dataloader()):
        list(loader)
    assert torch.equal(torch.get_rng_state(), state)


def test_batches_depend_neither_on_the_seed_nor_on_the_variant(made):
    one, other = build(made), build(Config(seed=1))
    torch.manual_seed(7)
    assert numbers_of(list(one.train_dataloader())) == numbers_of(list(other.train_dataloader()))


def test_sizes_are_those_of_the_streams(made):
    info = build(made).info
    assert dict(info.sizes) == {"vocabulary": 33, "train": 500, "val": 250, "test": 250}
    assert info.source.startswith("DATA_DIR: made-1/")
    assert known_sizes(made.dataset) is None


def test_sizes_of_the_published_texts_are_known_without_files():
    assert known_sizes(dataset("wikitext103")) == {
        "vocabulary": 267_735,
        "train": 103_227_021,
        "val": 217_646,
        "test": 245_569,
    }
    assert known_sizes(dataset("wikitext2"))["vocabulary"] == 33_278
    assert known_sizes(dataset("wikitext103_valid_as_train")) is None
    assert known_sizes(dataset("wikitext103_bpe")) is None


def test_a_text_too_short_for_its_columns_names_the_key(made):
    made.recipe = recipe(batch_size=300)
    with pytest.raises(ValueError, match=r"'train' has 500 tokens, too few for 300 columns"):
        build(made)


@pytest.mark.parametrize(
    "options",
    [{}, {"segment": 256, "window": 256, "batch_size": 96}, {"window": 2, "evaluation_batch": 10}],
)
def test_tiny_serves_every_protocol(options):
    cfg = Config(recipe=recipe(**options))
    data = tiny(cfg)
    assert data.info.kind == "synthetic"
    batches = list(data.train_dataloader())
    assert [batch.inputs.shape for batch in batches] == [(2, cfg.recipe.segment)] * 2
    vocabulary = data.info.sizes["vocabulary"]
    assert vocabulary < 250
    model = MeanModel(vocabulary, memory=4)
    texts = list(data.test_dataloader())
    assert len(texts) == 5
    for text in texts:
        assert 0 <= int(text.tokens.min()) <= int(text.tokens.max()) < vocabulary
        columns = cfg.recipe.evaluation_batch
        for score in (
            evaluate.sliding(model, text.tokens, window=cfg.recipe.window),
            evaluate.segments(model, text.tokens, length=cfg.recipe.segment, columns=columns),
            evaluate.xl(model, text.tokens, columns=columns),
        ):
            assert np.isfinite(score.perplexity)
    assert tiny(cfg).info == data.info


def test_tiny_can_be_learnt():
    """What comes next depends on the word before: counting pairs beats counting words."""
    cfg = Config(recipe=recipe(segment=4000))
    data = tiny(cfg)
    train, val = (data.corpus.streams[split] for split in ("train", "val"))
    pairs = np.ones((data.info.sizes["vocabulary"],) * 2)
    np.add.at(pairs, (train[:-1], train[1:]), 20)
    log_p = np.log(pairs / pairs.sum(1, keepdims=True))
    loss = -log_p[val[:-1], val[1:]].mean()
    assert np.exp(loss) < 0.3 * evaluate.unigram(data.corpus.counts, val).perplexity


def test_the_names_of_attacked_metrics_follow_the_rates():
    assert data_module.EvaluationText("test", 2.5, torch.zeros(1), 1.0).suffix == "_attack2.5"
    assert isinstance(tiny(Config()), LanguageData)
