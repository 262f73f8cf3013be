"""Protocols, phases, metrics and outcomes of the toy domain."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
import yaml

from domains import registry
from domains.contract import PhaseResult
from domains.toy.config import CHOICES, OUTCOMES, SPEC, DatasetConfig, ModelConfig
from domains.toy.data import build
from domains.toy.domain import DOMAIN
from domains.toy.model import Looks
from domains.toy.outcomes import READINGS, outcome, outcome_metrics, readings
from tests.domains.toy.helpers import CONF, Config, alone, data_of, recipe, small, together


def test_domain_is_found_by_its_folder():
    assert registry.load("toy") is DOMAIN
    assert registry.spec("toy") is SPEC


@pytest.mark.parametrize(
    ("train", "test", "expected"),
    [
        (95.0, 91.0, "test/correct"),
        (100.0, 90.0, "test/other"),  # above the limit, not at it
        (90.0, 95.0, "test/other"),
        (65.0, 30.0, "test/biased"),
        (50.0, 20.0, "test/biased"),
        (80.0, 40.0, "test/biased"),
        (81.0, 30.0, "test/other"),
        (65.0, 41.0, "test/other"),
        (10.5, 9.0, "test/degenerate"),
        (14.9, 14.9, "test/degenerate"),
        (35.0, 11.0, "test/other"),  # memorises
        (float("nan"), float("nan"), "test/other"),
    ],
)
def test_classes_of_outcome(train: float, test: float, expected: str) -> None:
    assert outcome(train, test) == expected
    metrics = outcome_metrics(train, test)
    assert set(metrics) == set(OUTCOMES)
    assert metrics[expected] == 100.0
    assert sum(metrics.values()) == 100.0


def finished(train: float, test: float) -> PhaseResult:
    last = {"train/loss": 0.5, "train/accuracy": train, "test/accuracy": test}
    history = ({**last, "train/accuracy": 0.0}, last)
    return PhaseResult("main", 2, 126, 1, 126, None, {"test/accuracy": test}, history, 1.0, 1.0)


def test_every_number_of_a_result_is_described():
    cfg = Config()
    summary = DOMAIN.summarize(cfg, [finished(95.0, 92.0)])
    assert set(summary) == {metric.name for metric in DOMAIN.metrics(cfg)}
    assert DOMAIN.metrics(cfg)[0].name == SPEC.grid.outcomes[0]
    assert summary["test/correct"] == 100.0
    assert (summary["train/accuracy"], summary["test/accuracy"]) == (95.0, 92.0)


def test_one_phase_without_a_selection():
    cfg = Config()
    phase = DOMAIN.next_phase(cfg, [])
    assert (phase.max_epochs, phase.selection, phase.test) == (50, None, True)
    assert DOMAIN.next_phase(cfg, [finished(1.0, 1.0)]) is None
    short = Config(budget=SimpleNamespace(max_epochs=10))
    assert DOMAIN.next_phase(short, []).max_epochs == 10


@pytest.mark.parametrize("protocol", CHOICES)
def test_the_test_set_of_every_protocol(protocol: str) -> None:
    """Training samples are the same under all of them."""
    data = build(Config(protocol=protocol), tiny=False)
    train, test = data.splits["train"], data.splits["test"]
    paper = build(Config(), tiny=False)
    assert torch.equal(train.tokens, paper.splits["train"].tokens)
    assert (len(train), len(test)) == (2000, 1000)
    share = {"test_as_train": 0.5}.get(protocol, 0.0)
    assert float(test.biased.double().mean()) == pytest.approx(share, abs=0.06)
    spread = float(test.positions.double().std())
    assert spread == pytest.approx(5.77 if protocol == "test_uniform" else 2.0, abs=0.3)
    assert set(CHOICES) == set(SPEC.protocols)


def test_the_run_s_seed_moves_the_weights_alone():
    one, other = build(Config(seed=0), tiny=False), build(Config(seed=1), tiny=False)
    assert one.info.fingerprint == other.info.fingerprint
    batches = [list(data.order(3)) for data in (one, other)]
    assert all(torch.equal(a, b) for a, b in zip(*batches, strict=True))
    another = build(Config(dataset=DatasetConfig(seed=1)), tiny=False)
    assert another.info.fingerprint != one.info.fingerprint
    assert not torch.equal(batches[0][0], next(iter(another.order(3))))


def test_known_sizes_are_those_of_the_data():
    cfg = Config(dataset=DatasetConfig(train=70, test=30, length=16))
    assert DOMAIN.known_sizes(cfg) == build(cfg, tiny=False).info.sizes
    assert build(cfg, tiny=False).splits["train"].tokens.shape == (70, 16, 20)


def test_smoke_data_are_marked_as_made_up():
    phase = DOMAIN.next_phase(Config(), [])
    tiny = DOMAIN.tiny(Config(), phase)
    assert (tiny.info.kind, tiny.info.sizes["train"]) == ("synthetic", 64)
    assert DOMAIN.build_data(small(), phase).info.kind == "regenerated"
    assert DOMAIN.require_data(Config()).kind == "regenerated"


def test_readings_by_hand():
    """Two samples of three tokens; answers at 1 (biased) and 2 (not)."""
    looks = Looks(
        torch.tensor([[9.0, 1.0, 2.0, 3.0], [9.0, 4.0, 5.0, 6.0]]),
        torch.tensor([2.0, 4.0]),
        torch.tensor([[0.1, 0.2, 0.3, 0.4], [0.4, 0.3, 0.2, 0.1]]),
    )
    sums, counts = readings(looks, torch.tensor([1, 2]), torch.tensor([True, False]))
    means = dict(zip(READINGS, (sums / counts).tolist(), strict=True))
    assert means == pytest.approx(
        {
            "key_norm_biased": 2.0,
            "key_norm_unbiased": 6.0,
            "key_norm_other": (1.0 + 3.0 + 4.0 + 5.0) / 4,
            "query_norm": 3.0,
            "attention_biased": 0.3,
            "attention_unbiased": 0.1,
            "attention_other": (0.2 + 0.4 + 0.3 + 0.2) / 2,
        },
        rel=1e-6,
    )


def test_accuracies_and_readings_of_a_run_by_hand():
    """What is logged after an epoch is that of the weights at its end, on all samples."""
    cfg = small()
    module, history, metrics = alone(cfg, "standard", 2)
    data = data_of(cfg, torch.float32)
    net = module.net.eval()
    with torch.no_grad():
        for name, split in data.splits.items():
            right = (net(split.tokens).argmax(-1) == split.labels).double().mean()
            assert history[-1][f"{name}/accuracy"] == pytest.approx(100.0 * float(right))
        train = data.splits["train"]
        looks = net.looks(train.tokens)
        rows = torch.arange(len(train))
        answer = looks.key_norms[rows, train.positions + 1]
        biased = float(answer[train.biased].mean())
        assert history[-1]["probe/key_norm_biased"] == pytest.approx(biased, rel=1e-5)
    assert metrics["test/accuracy"] == pytest.approx(history[-1]["test/accuracy"])
    assert "initial/query_norm" in history[0]
    assert "initial/query_norm" not in history[1]


def test_training_loss_is_the_mean_over_samples_as_trained():
    cfg = small()
    _, history, _ = alone(cfg, "quest", 1)
    from domains.base import build_optimizer
    from tests.domains.toy.helpers import module_of

    data = data_of(cfg, torch.float32)
    module = module_of(cfg, data, "quest")
    optimizer = build_optimizer(module.net, cfg.recipe.optimizer)
    total = 0.0
    for index in data.order(0):
        batch = data.splits["train"][index]
        loss = module.loss(batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += float(loss.detach()) * len(index)
    assert history[0]["train/loss"] == pytest.approx(total / 200, rel=1e-5)


@pytest.mark.parametrize(
    ("build_config", "message"),
    [
        (lambda: DatasetConfig(seed=-1), "dataset.seed=-1 must be"),
        (lambda: DatasetConfig(train=0), "dataset.train=0 must be at least 1"),
        (lambda: DatasetConfig(length=1), "dataset.length=1 must be at least 2"),
        (lambda: ModelConfig(feedforward=0), "model.feedforward=0 must be at least 1"),
        (lambda: ModelConfig(token_sd=-1.0), "model.token_sd=-1.0 must be a number from 0"),
    ],
)
def test_wrong_options_are_refused(build_config: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build_config()


def test_files_say_what_the_dataclasses_say():
    dataset = yaml.safe_load((CONF / "dataset" / "toy" / "toy.yaml").read_text())
    source = dataset.pop("source")
    assert DatasetConfig(**dataset) == DatasetConfig()
    assert source
    domain = yaml.safe_load((CONF / "domain" / "toy.yaml").read_text())
    assert ModelConfig(**domain["model"]) == ModelConfig()
    sweep = domain["bench"]["sweep"]
    assert set(sweep) == {*SPEC.grid.axes, *SPEC.grid.replicates}
    runs = domain["bench"]["seeds"]
    for values in sweep.values():
        runs *= len(values)
    assert runs == 750


def test_a_small_grid_in_seconds():
    """1 data set x 2 initialisations x 2 learning rates, 10 epochs: losses fall in all."""
    cfgs = [Config(seed=seed, recipe=recipe(lr)) for lr in (0.001, 0.005) for seed in (0, 1)]
    for history in together(cfgs, "quest", 10).histories:
        losses = [values["train/loss"] for values in history]
        assert losses[0] == pytest.approx(2.3, abs=0.15)
        assert losses[-1] < losses[0] - 0.05
