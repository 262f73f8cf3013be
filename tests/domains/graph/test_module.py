"""Training and evaluation: what is logged, what can be learnt."""

from __future__ import annotations

from typing import Any

import lightning
import pytest
import torch
from lightning.pytorch.callbacks import Callback
from torch.utils.data import DataLoader

from attention import AttentionFactory
from domains.contract import OptimizerConfig, RecipeConfig
from domains.graph.model import GPSModel
from domains.graph.module import GraphModule

from .helpers import TASKS, batch_of, recipe, small_model, small_set


def module(task: str, variant: str = "standard", **options: Any) -> GraphModule:
    torch.manual_seed(0)
    dataset = small_set(task)
    net = GPSModel(small_model(dataset, **options), dataset, AttentionFactory(variant))
    return GraphModule(net, recipe(), dataset)


def loader(task: str, split: str, count: int = 2) -> DataLoader:
    sizes = [(5, 8, 3, 6), (7, 2, 4)]
    batches = [batch_of(small_set(task), sizes[i % 2], seed=i, split=split) for i in range(count)]
    return DataLoader(batches, batch_size=None)


class History(Callback):
    """Keeps what was logged after every epoch."""

    def __init__(self) -> None:
        self.epochs: list[dict[str, float]] = []

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        self.epochs.append({k: float(v) for k, v in trainer.callback_metrics.items()})


def trainer(*callbacks: Callback) -> lightning.Trainer:
    return lightning.Trainer(
        max_epochs=2,
        accelerator="cpu",
        devices=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        gradient_clip_val=1.0,
        callbacks=list(callbacks),
    )


RANKED = {
    "mrr",
    "mrr_filtered",
    "mrr_filtered_noself",
    "mrr_per_contact",
    "hits1",
    "hits3",
    "hits10",
}


@pytest.mark.parametrize("task", TASKS)
def test_every_epoch_logs_all_splits(task: str):
    history = History()
    ours = module(task)
    fitter = trainer(history)
    fitter.fit(ours, loader(task, "train"), [loader(task, "val"), loader(task, "test")])
    names = RANKED if task == "contact" else {small_set(task).metric}
    expected = {f"{split}/{name}" for split in ("val", "test") for name in {*names, "loss"}}
    expected |= {"train/loss"} | (set() if task == "contact" else {f"train/{n}" for n in names})
    assert [set(epoch) for epoch in history.epochs] == [expected] * 2
    fitter.test(ours, loader(task, "test"), verbose=False)
    assert set(fitter.callback_metrics) == {f"test/{name}" for name in {*names, "loss"}}


def test_the_loss_of_a_split_weighs_batches_by_their_rows():
    task = "graph_regression"
    ours = module(task)
    fitter = trainer()
    fitter.test(ours, loader(task, "test"), verbose=False)
    ours.eval()
    errors = torch.cat([(ours.net(b) - b.y).abs().flatten() for b in loader(task, "test")])
    assert float(fitter.callback_metrics["test/loss"]) == pytest.approx(
        float(errors.mean().detach())
    )
    assert float(fitter.callback_metrics["test/mae"]) == pytest.approx(
        float(errors.mean().detach())
    )


def test_the_training_score_is_made_of_predictions_while_training():
    """Nothing is evaluated anew: with a learning rate of nearly 0, those of the first weights."""
    task = "graph_regression"
    ours = module(task, attention_dropout=0.0)
    ours.recipe = RecipeConfig("still", 1, 4, optimizer=OptimizerConfig(lr=1e-12))
    errors = torch.cat([(ours.net(b) - b.y).abs().flatten() for b in loader(task, "train")])
    history = History()
    trainer(history).fit(ours, loader(task, "train"), loader(task, "val"))
    for epoch in history.epochs:
        assert epoch["train/mae"] == pytest.approx(float(errors.mean().detach()), rel=1e-4)


@pytest.mark.parametrize("variant", ["standard", "quest"])
@pytest.mark.parametrize("task", TASKS)
def test_one_batch_can_be_learnt(task: str, variant: str):
    ours = module(task, variant, attention_dropout=0.0)
    batch = batch_of(small_set(task), (6, 9, 7, 5))
    optimizer = torch.optim.AdamW(ours.parameters(), lr=1e-2)
    losses = []
    for _ in range(60):
        optimizer.zero_grad()
        loss = ours.loss(batch)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(ours.parameters(), 1.0)
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.5 * losses[0]


def test_weight_decay_takes_every_parameter_but_learned_scales():
    """Biases, norms and embeddings included, as the published optimiser does it."""
    ours = module("graph_regression", "qknorm_hs")
    ours.recipe = recipe(optimizer=OptimizerConfig(name="adamw", weight_decay=1e-5))
    ours.trainer = trainer()
    groups = ours.configure_optimizers()["optimizer"].param_groups
    decayed = sum(p.numel() for g in groups if g["weight_decay"] == 1e-5 for p in g["params"])
    spared = [p for g in groups if g["weight_decay"] == 0.0 for p in g["params"]]
    assert decayed + sum(p.numel() for p in spared) == sum(p.numel() for p in ours.net.parameters())
    assert len(spared) == 2, "one learned scale a layer"
