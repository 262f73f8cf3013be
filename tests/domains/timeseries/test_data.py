"""Batches: order, evaluation, residency; the metrics that come out of them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn import functional as F
from torch.utils.data import DataLoader

from domains.base import build_optimizer
from domains.contract import DataCorrupt, Phase
from domains.timeseries import data as data_module
from domains.timeseries.config import DatasetConfig, ModelConfig
from domains.timeseries.domain import DOMAIN
from domains.timeseries.sources import LoadedSet
from domains.timeseries.ts_format import TsFile

from .helpers import MAIN, PAPER_SETS, Config, History, dataset, fit, module_of, small_model


def order_of(loader: DataLoader, epoch: int) -> list[torch.Tensor]:
    loader.sampler.set_epoch(epoch)
    return [batch.series for batch in loader]


def test_sizes_of_japanesevowels_under_both_protocols():
    for protocol in ("holdout", "tslib"):
        cfg = Config(protocol=protocol)
        info = DOMAIN.build_data(cfg, MAIN).info
        assert info.kind == "real"
        assert dict(info.sizes) == dict(DOMAIN.known_sizes(cfg))


def test_order_depends_on_seed_and_epoch_alone():
    """Not on the variant, the global generator, or how often the loader was read."""
    cfg = Config()
    one = order_of(DOMAIN.tiny(cfg, MAIN).train_dataloader(), 3)
    torch.manual_seed(123)
    again = DOMAIN.tiny(cfg, MAIN).train_dataloader()
    order_of(again, 0)
    module_of(cfg, DOMAIN.known_sizes(cfg), "elliptical_quest")
    for a, b in zip(one, order_of(again, 3), strict=True):
        assert torch.equal(a, b)
    other = order_of(DOMAIN.tiny(Config(seed=1), MAIN).train_dataloader(), 3)
    assert any(a.shape != b.shape or not torch.equal(a, b) for a, b in zip(one, other, strict=True))


def test_reading_batches_leaves_the_global_generator_alone():
    data = DOMAIN.tiny(Config(), MAIN)
    state = torch.get_rng_state()
    for loader in (data.train_dataloader(), *data.val_dataloader(), data.test_dataloader()):
        list(loader)
    assert torch.equal(torch.get_rng_state(), state)


def test_validation_part_is_the_same_for_all_variants_and_differs_by_seed():
    def val(seed: int) -> torch.Tensor:
        return DOMAIN.build_data(Config(seed=seed), MAIN).splits["val"].series

    assert torch.equal(val(0), val(0))
    assert not torch.equal(val(0), val(1))


def test_every_training_series_once_an_epoch():
    data = DOMAIN.build_data(Config(), MAIN)
    labels = torch.cat([batch.labels for batch in data.train_dataloader()])
    assert len(labels) == 216
    assert torch.bincount(labels).tolist() == [24] * 9
    sizes = [len(batch.labels) for batch in data.train_dataloader()]
    assert sizes == [16] * 13 + [8]


def test_batches_are_cropped_under_holdout_and_of_one_length_under_tslib():
    for protocol, cropped in (("holdout", True), ("tslib", False)):
        data = DOMAIN.build_data(Config(protocol=protocol), MAIN)
        longest = max(split.series.shape[1] for split in data.splits.values())
        lengths = {batch.series.shape[1] for batch in data.train_dataloader()}
        assert (lengths != {longest}) is cropped
        for batch in data.train_dataloader():
            steps = batch.series.shape[1]
            assert batch.lengths is not None
            behind = torch.arange(steps) >= batch.lengths[:, None]
            assert not batch.series[behind].any()
            if cropped:
                assert int(batch.lengths.max()) == steps


def test_flat_readout_cuts_longer_test_series_under_holdout_alone():
    cfg = Config(model=ModelConfig(readout="flat"))
    data = DOMAIN.build_data(cfg, MAIN)
    assert data.splits["test"].series.shape[1] == data.info.sizes["length"] == 26
    assert any("test series cut to the training length" in note for note in data.info.notes)
    data = DOMAIN.build_data(Config(), MAIN)
    assert data.splits["test"].series.shape[1] == 29
    assert data.info.notes == ()


@pytest.mark.parametrize("protocol", ["holdout", "tslib"])
def test_metrics_do_not_depend_on_the_evaluation_batch(protocol, monkeypatch):
    cfg = Config(protocol=protocol, model=small_model())
    results = []
    for tokens in (16384, 29, 29 * 7):
        monkeypatch.setattr(data_module, "EVAL_TOKENS", tokens)
        data = DOMAIN.build_data(cfg, MAIN)
        module = module_of(cfg, data.info.sizes)
        [result] = fit(module, data, 0).test(module, datamodule=data, verbose=False)
        results.append(result)
    for result in results[1:]:
        assert result["test/accuracy"] == results[0]["test/accuracy"]
        assert result["test/loss"] == pytest.approx(results[0]["test/loss"], abs=1e-6)


def test_metrics_equal_values_computed_by_hand():
    cfg = Config(model=small_model(dropout=0.0))
    data = DOMAIN.tiny(cfg, MAIN)
    module = module_of(cfg, data.info.sizes)
    history = History()
    fit(module, data, 2, history)
    for name in ("val", "test"):
        split = data.splits[name]
        with torch.no_grad():
            logits = torch.cat(
                [
                    module.eval().net(split.series[i : i + 1, :n])
                    for i, n in enumerate(split.lengths.tolist())
                ]
            )
        logged = history.epochs[-1]
        hits = sum(int(row.argmax()) == int(y) for row, y in zip(logits, split.labels, strict=True))
        assert logged[f"{name}/accuracy"] == pytest.approx(100 * hits / len(split.labels))
        loss = -F.log_softmax(logits, -1)[range(len(logits)), split.labels].mean()
        assert logged[f"{name}/loss"] == pytest.approx(float(loss), rel=1e-4)


def test_train_loss_is_the_mean_over_series_of_the_same_epoch():
    cfg = Config(model=small_model(dropout=0.0))
    cfg.recipe.batch_size = 10
    cfg.recipe.optimizer.lr = 0.0
    data = DOMAIN.tiny(cfg, MAIN)
    module = module_of(cfg, data.info.sizes)
    split = data.splits["train"]
    assert len(split) % 10
    logits = module.net(split.series, split.lengths)
    history = History()
    fit(module, data, 1, history)
    expected = F.cross_entropy(logits, split.labels).item()
    assert history.epochs[0]["train/loss"] == pytest.approx(expected, rel=1e-4)


def test_diverged_loss_is_not_hidden_in_the_metrics():
    cfg = Config(model=small_model())
    data = DOMAIN.tiny(cfg, MAIN)
    module = module_of(cfg, data.info.sizes)
    torch.nn.init.constant_(module.net.readout.classify.bias, float("nan"))
    [result] = fit(module, data, 0).test(module, datamodule=data, verbose=False)
    assert np.isnan(result["test/loss"])


@pytest.mark.parametrize("name", [*PAPER_SETS, "BasicMotions", "uea"])
def test_tiny_has_the_shapes_of_the_set(name):
    config = dataset(name) if name != "uea" else DatasetConfig(name="Unknown")
    cfg = Config(dataset=config)
    data = DOMAIN.tiny(cfg, MAIN)
    assert data.info.kind == "synthetic"
    known = DOMAIN.known_sizes(cfg)
    if known is not None:
        for key in ("channels", "classes", "length"):
            assert data.info.sizes[key] == known[key]
    lengths = torch.cat([split.lengths for split in data.splits.values()])
    assert (len(lengths.unique()) > 1) == (config.shortest is not None)
    assert torch.isfinite(data.splits["train"].series).all()


@pytest.mark.parametrize("readout", ["cls", "flat"])
def test_overfits_one_batch(readout):
    cfg = Config(model=small_model(readout=readout, dropout=0.0))
    cfg.recipe.optimizer.lr = 0.01
    data = DOMAIN.tiny(cfg, MAIN)
    module = module_of(cfg, data.info.sizes)
    batch = data.splits["train"][torch.arange(12)]
    optimizer = build_optimizer(module.net, cfg.recipe.optimizer)
    for _ in range(300):
        optimizer.zero_grad()
        loss = F.cross_entropy(module.net(batch.series, batch.lengths), batch.labels)
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.05


def test_tiny_is_learnable():
    cfg = Config(model=small_model(dropout=0.0))
    cfg.recipe.optimizer.lr = 0.01
    data = DOMAIN.tiny(cfg, MAIN)
    module = module_of(cfg, data.info.sizes)
    history = History()
    fit(module, data, 25, history)
    assert history.epochs[-1]["test/accuracy"] > 60


def test_folds_partition_the_training_series():
    cfg = Config(dataset=dataset("Handwriting"))
    seen = []
    for fold in range(5):
        phase = Phase(f"fold{fold}", 1, test=False, data={"part": "fold", "fold": fold})
        data = DOMAIN.tiny(cfg, phase)
        assert set(data.splits) == {"train", "val"}
        assert len(data.val_dataloader()) == 1
        assert len(data.splits["train"]) + len(data.splits["val"]) == 26 * 4
        seen.append(len(data.splits["val"]))
    assert sum(seen) == 26 * 4
    final = DOMAIN.tiny(cfg, Phase("final", 1, data={"part": "all"}))
    assert set(final.splits) == {"train", "test"}
    assert len(final.splits["train"]) == 26 * 4


def loaded(train: tuple[int, str], test: tuple[int, str], each: int = 4) -> LoadedSet:
    """A made-up set; of each file the channels and the classes, one letter each."""

    def file(channels: int, classes: str) -> TsFile:
        labels = np.repeat(np.arange(len(classes)), each)
        lengths = np.full((len(labels), channels), 5)
        values = np.random.default_rng(channels).normal(size=lengths.sum())
        return TsFile(tuple(classes), labels, lengths, values)

    return LoadedSet(file(*train), file(*test), "sample", "made up", ())


@pytest.mark.parametrize("protocol", ["holdout", "tslib"])
@pytest.mark.parametrize("channels", [1, 2])
def test_a_test_file_with_other_channels_is_refused(protocol, channels):
    with pytest.raises(DataCorrupt, match=f"TRAIN has 3 channels, but TEST has {channels}"):
        data_module.build(Config(protocol=protocol), MAIN, loaded((3, "ab"), (channels, "ab")))


@pytest.mark.parametrize("protocol", ["holdout", "tslib"])
def test_a_test_class_unknown_to_train_is_refused(protocol):
    with pytest.raises(DataCorrupt, match="classes without a training series: c"):
        data_module.build(Config(protocol=protocol), MAIN, loaded((3, "ab"), (3, "abc")))


def test_classes_of_one_series_leave_no_validation_part():
    made = loaded((3, "abc"), (3, "abc"), each=1)
    with pytest.raises(ValueError, match="every class has a single training series"):
        data_module.build(Config(), MAIN, made)
    data_module.build(Config(protocol="tslib"), MAIN, made)


def test_more_folds_than_training_series_are_refused():
    with pytest.raises(ValueError, match=r"dataset.folds=271 must be at most .* here 270"):
        DatasetConfig(name="JapaneseVowels", train=270, folds=271)
    cfg = Config(dataset=DatasetConfig(name="Made", folds=9))
    phase = Phase("fold0", 1, test=False, data={"part": "fold", "fold": 0})
    with pytest.raises(ValueError, match=r"dataset.folds=9 must be at most .* here 8"):
        data_module.build(cfg, phase, loaded((3, "ab"), (3, "ab")))
