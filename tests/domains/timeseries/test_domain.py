"""Protocols: phases, selection, and the numbers of a result, worked by hand."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from domains import registry
from domains.contract import PhaseResult, Selection
from domains.timeseries.config import DatasetConfig, ModelConfig
from domains.timeseries.domain import DOMAIN

from .helpers import CONF, MAIN, PAPER_SETS, Config, History, dataset, fit, module_of, small_model


def result(name: str, accuracies: list[float], selected: int, **options) -> PhaseResult:
    """A finished phase with a test accuracy per epoch."""
    metrics = {"test/accuracy": accuracies[selected], "test/loss": 0.5}
    fields = {
        "epochs": len(accuracies),
        "steps": 10 * len(accuracies),
        "selected_epoch": selected,
        "selected_step": 10 * (selected + 1),
        "best": None,
        "metrics": metrics,
        "history": tuple({"test/accuracy": a, "train/loss": 1.0} for a in accuracies),
        "seconds": 1.0,
        "train_seconds": 1.0,
    }
    return PhaseResult(name=name, **{**fields, **options})


def kept_epoch(selection: Selection, values: list[float]) -> tuple[int, int]:
    """Epoch whose weights are kept and epochs trained, by TSLib's EarlyStopping.

    Source: thuml/Time-Series-Library at 4e938a1, utils/tools.py: the counter rises only when the
    score is strictly below the best; otherwise the checkpoint is overwritten.
    """
    best, kept, counter = None, 0, 0
    for epoch, value in enumerate(values):
        if best is not None and value < best:
            counter += 1
            if counter >= selection.patience:
                return kept, epoch + 1
        else:
            best, kept, counter = value, epoch, 0
    return kept, len(values)


def test_domain_is_found_by_its_folder():
    assert "timeseries" in registry.names()
    assert registry.load("timeseries") is DOMAIN
    assert set(DOMAIN.spec.protocols) == {"holdout", "tslib"}
    assert DOMAIN.spec.protocols["tslib"].note == "selected on the test split"
    assert DOMAIN.spec.protocols["holdout"].note is None


def test_phases_of_tslib():
    cfg = Config(protocol="tslib")
    phase = DOMAIN.next_phase(cfg, [])
    assert (phase.name, phase.max_epochs, phase.test) == ("main", 100, True)
    assert phase.selection == Selection("test/accuracy", "max", 10, "later")
    assert DOMAIN.next_phase(cfg, [result("main", [1.0], 0)]) is None


def test_early_stop_counts_and_keeps_as_tslib_does():
    """Ties reset the counter and move the checkpoint: worked by hand."""
    selection = DOMAIN.next_phase(Config(protocol="tslib"), []).selection
    assert selection.patience == 10
    assert selection.ties == "later"
    plateau = [50.0, 90.0, *[80.0] * 9, 90.0, *[80.0] * 10, 99.0]
    assert kept_epoch(selection, plateau) == (11, 22)
    assert kept_epoch(selection, [50.0, 90.0, *[80.0] * 10, 99.0]) == (1, 12)
    assert kept_epoch(selection, [90.0] * 30) == (29, 30)


def test_phases_of_holdout():
    cfg = Config()
    phase = DOMAIN.next_phase(cfg, [])
    assert phase.selection == Selection("val/accuracy", "max", 10, "later")
    assert phase.test
    assert DOMAIN.next_phase(cfg, [result("main", [1.0], 0)]) is None


def test_phases_of_holdout_with_folds():
    cfg = Config(dataset=dataset("Handwriting"))
    done = []
    for fold in range(5):
        phase = DOMAIN.next_phase(cfg, done)
        assert (phase.name, phase.test) == (f"fold{fold}", False)
        assert phase.selection.monitor == "val/accuracy"
        assert phase.data == {"part": "fold", "fold": fold}
        # Epochs 10, 11, 12, 13, 17 of training: mean 12.6.
        done.append(result(phase.name, [1.0] * 20, [9, 10, 11, 12, 16][fold], best=40.0 + fold))
    final = DOMAIN.next_phase(cfg, done)
    assert (final.name, final.max_epochs, final.selection, final.test) == ("final", 13, None, True)
    done.append(result("final", [10.0, 45.0, 40.0], 2))
    assert DOMAIN.next_phase(cfg, done) is None
    summary = DOMAIN.summarize(cfg, done)
    assert summary["val/accuracy"] == 42.0
    assert summary["test/accuracy"] == summary["test/accuracy_last"] == 40.0
    assert summary["test/selection_gap"] == 5.0
    assert summary["train/epochs_selected"] == 3


def test_half_an_epoch_is_rounded_up():
    cfg = Config(dataset=DatasetConfig(name="X", folds=2))
    for chosen in ((0, 1), (1, 2)):
        done = [result("f", [1.0] * 5, epoch) for epoch in chosen]
        assert DOMAIN.next_phase(cfg, done).max_epochs == chosen[1] + 1


@pytest.mark.parametrize("protocol", ["holdout", "tslib"])
def test_budget_caps_the_epochs(protocol):
    for limit, expected in ((None, 100), (7, 7), (500, 100)):
        cfg = Config(protocol=protocol, budget=SimpleNamespace(max_epochs=limit))
        assert DOMAIN.next_phase(cfg, []).max_epochs == expected


def test_size_of_the_flaw_under_both_protocols():
    """best 95 at epoch 3; holdout chose epoch 2 with 92; the last epoch has 90."""
    accuracies = [80.0, 92.0, 95.0, 94.0, 90.0]
    honest = DOMAIN.summarize(Config(), [result("main", accuracies, 1, best=88.0)])
    assert honest["test/accuracy"] == 92.0
    assert honest["test/accuracy_best"] == 95.0
    assert honest["test/selection_gap"] == 3.0
    assert honest["test/accuracy_last"] == 90.0
    assert honest["val/accuracy"] == 88.0
    assert honest["train/epochs_selected"] == 2
    assert "test/accuracy_epoch25" not in honest

    flawed = DOMAIN.summarize(Config(protocol="tslib"), [result("main", accuracies, 2, best=95.0)])
    assert flawed["test/accuracy"] == flawed["test/accuracy_best"] == 95.0
    assert flawed["test/selection_gap"] == 5.0
    assert "val/accuracy" not in flawed


def test_accuracy_at_fixed_epochs():
    summary = DOMAIN.summarize(Config(), [result("main", [float(i) for i in range(60)], 3, best=1)])
    assert summary["test/accuracy_epoch25"] == 24.0
    assert summary["test/accuracy_epoch50"] == 49.0
    assert "test/accuracy_epoch100" not in summary


@pytest.mark.parametrize("protocol", ["holdout", "tslib"])
def test_every_number_of_a_result_is_described(protocol):
    cfg = Config(protocol=protocol)
    metrics = {metric.name: metric for metric in DOMAIN.metrics(cfg)}
    assert next(iter(metrics)) == "test/accuracy"
    summary = DOMAIN.summarize(cfg, [result("main", [1.0] * 100, 3, best=1.0)])
    assert set(summary) == set(metrics)
    note = metrics["test/accuracy"].note
    assert note == ("selected on the test split" if protocol == "tslib" else None)


def test_known_sizes_need_no_files():
    for name in PAPER_SETS:
        for protocol in ("holdout", "tslib"):
            cfg = Config(dataset=dataset(name), protocol=protocol)
            assert DOMAIN.known_sizes(cfg)["channels"] == cfg.dataset.channels
    assert DOMAIN.known_sizes(Config(dataset=DatasetConfig(name="Other"))) is None


def test_names_of_models_are_those_of_the_published_table():
    assert ModelConfig().name == "transformer_cls"
    assert ModelConfig(readout="flat").name == "transformer_flat"


def test_every_dataset_has_a_file_that_fits_the_dataclass():
    for path in (CONF / "dataset" / "timeseries").glob("*.yaml"):
        text = path.read_text()
        assert text.startswith("# @package dataset\n")
        if path.stem != "_uea":
            assert dataset(path.stem).name == path.stem
    assert {*PAPER_SETS, "BasicMotions", "_uea"} == {
        path.stem for path in (CONF / "dataset" / "timeseries").glob("*.yaml")
    }


@pytest.mark.parametrize(
    ("options", "message"), [({"folds": 1}, "folds=1"), ({"validation": 1.0}, "validation=1.0")]
)
def test_wrong_dataset_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        DatasetConfig(name="X", **options)


@pytest.mark.parametrize(("protocol", "monitored"), [("holdout", "val"), ("tslib", "test")])
def test_selected_metric_is_logged_every_epoch(protocol, monitored):
    cfg = Config(protocol=protocol, model=small_model())
    data = DOMAIN.tiny(cfg, MAIN)
    history = History()
    trainer = fit(module_of(cfg, data.info.sizes), data, 3, history)
    phase = DOMAIN.next_phase(cfg, [])
    assert phase.selection.monitor == f"{monitored}/accuracy"
    expected = {"train/loss", "test/accuracy", "test/loss"}
    if protocol == "holdout":
        expected |= {"val/accuracy", "val/loss"}
    assert [set(epoch) for epoch in history.epochs] == [expected] * 3
    assert set(trainer.callback_metrics) == expected


def test_selection_under_holdout_never_sees_the_test_split():
    """Other test series give the same training and validation numbers, bit by bit."""

    def run(noise: float) -> list[dict[str, float]]:
        cfg = Config(model=small_model())
        data = DOMAIN.tiny(cfg, MAIN)
        data.splits["test"].series += noise
        module = module_of(cfg, data.info.sizes)
        history = History()
        torch.manual_seed(5)
        fit(module, data, 2, history)
        return history.epochs

    for one, other in zip(run(0.0), run(3.0), strict=True):
        assert one["train/loss"] == other["train/loss"]
        assert one["val/loss"] == other["val/loss"]
        assert one["test/loss"] != other["test/loss"]


def test_twenty_eight_steps_keep_their_losses():
    """Numerics are a contract: a change of these numbers is a change of results."""
    losses = {}
    for variant in ("standard", "quest"):
        cfg = Config(model=small_model(dropout=0.0), seed=0)
        data = DOMAIN.build_data(cfg, MAIN)
        history = History()
        fit(module_of(cfg, data.info.sizes, variant), data, 2, history)
        losses[variant] = [epoch["train/loss"] for epoch in history.epochs]
    assert losses["standard"] == pytest.approx([2.158775, 2.136589], abs=2e-4)
    assert losses["quest"] == pytest.approx([2.161455, 2.139070], abs=2e-4)
