"""What the engine itself costs: around a training loop, around a plan, around a report."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics import MeanMetric
from torchmetrics.classification import MulticlassAccuracy

from attention import MultiHeadAttention
from benchmarks.config import default_domain
from benchmarks.fit import PhaseFit
from benchmarks.plan import Planned, expand, parse
from benchmarks.speed import stores
from benchmarks.store import Store
from domains.base import BenchmarkData, BenchmarkModule, build_optimizer
from domains.common.schedules import schedule_factor
from domains.contract import Phase, RecipeConfig, Selection
from domains.speed_cases import SpeedCase, TimeLimit

GROUP = "the engine"
BATCH, TOKENS, CHANNELS, WIDTH, LAYERS, CLASSES = 16, 30, 12, 128, 3, 9
RECIPE = RecipeConfig(name="speed", max_epochs=1, batch_size=BATCH, gradient_clip=4.0)

Batch = list[Tensor]


def cases(*, device: str, quick: bool) -> Iterator[SpeedCase | TimeLimit]:
    """Overhead of a fit, time of a plan and of a report."""
    epochs, batches = (2, 5) if quick else (8, 14)
    yield SpeedCase(
        group=GROUP,
        name=f"{epochs} epochs of {batches} small steps",
        baseline=lambda: bare_loop(epochs, batches, device),
        candidate=lambda: engine_fit(epochs, batches, device),
        against="a bare loop of the same model",
        time_target=1.10,
        memory=False,
    )
    yield from stores.cases(quick=quick)


class Block(nn.Module):
    """Attention and feed-forward, each with its residual connection."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = MultiHeadAttention(WIDTH, 8)
        self.feed_forward = nn.Sequential(
            nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Dropout(0.1), nn.Linear(2 * WIDTH, WIDTH)
        )
        self.norms = nn.ModuleList([nn.LayerNorm(WIDTH) for _ in range(2)])

    def forward(self, x: Tensor) -> Tensor:
        """(B, N, width) to (B, N, width)."""
        x = self.norms[0](x + self.attention(x))
        out: Tensor = self.norms[1](x + self.feed_forward(x))
        return out


class SmallNet(nn.Module):
    """A classifier of the size of the smallest runs of the suite."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Linear(CHANNELS, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """(B, N, channels) to logits (B, classes)."""
        logits: Tensor = self.head(self.blocks(self.embedding(x)).mean(dim=1))
        return logits


class SmallData(BenchmarkData):
    """Random series with random labels; half as many to evaluate on as to train on."""

    def __init__(self, batches: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.sets = {}
        for split, size in (("train", batches * BATCH), ("val", batches * BATCH // 2)):
            series = torch.randn(size, TOKENS, CHANNELS, generator=generator)
            labels = torch.randint(CLASSES, (size,), generator=generator)
            self.sets[split] = TensorDataset(series, labels)

    def train_dataloader(self) -> DataLoader[tuple[Tensor, ...]]:
        return DataLoader(self.sets["train"], BATCH, shuffle=True)

    def val_dataloader(self) -> DataLoader[tuple[Tensor, ...]]:
        return DataLoader(self.sets["val"], 4 * BATCH)

    def test_dataloader(self) -> DataLoader[tuple[Tensor, ...]]:
        return self.val_dataloader()


class SmallModule(BenchmarkModule):
    """Cross-entropy and accuracy, logged once an epoch."""

    def __init__(self) -> None:
        super().__init__(SmallNet(), RECIPE)
        self.mean_loss = MeanMetric()
        self.accuracy = MulticlassAccuracy(CLASSES, average="micro")

    def loss(self, batch: Batch) -> Tensor:
        """Cross-entropy of a batch."""
        return F.cross_entropy(self.net(batch[0]), batch[1])

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        loss = self.loss(batch)
        self.mean_loss.update(loss.detach())
        self.log("train/loss", self.mean_loss, on_step=False, on_epoch=True)
        return loss

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        self.accuracy.update(self.net(batch[0]), batch[1])
        self.log("val/accuracy", self.accuracy, on_step=False, on_epoch=True)

    def test_step(self, batch: Batch, batch_idx: int) -> None:
        self.accuracy.update(self.net(batch[0]), batch[1])
        self.log("test/accuracy", self.accuracy, on_step=False, on_epoch=True)


def bare_loop(epochs: int, batches: int, device: str) -> Callable[[], object]:
    """The same work as a script would do it: train, evaluate each epoch, keep the best weights."""
    data = SmallData(batches)

    def accuracy(net: nn.Module, loader: DataLoader[tuple[Tensor, ...]]) -> float:
        net.eval()
        right = seen = 0
        with torch.no_grad():
            for series, labels in loader:
                guess = net(series.to(device)).argmax(dim=-1)
                right += int((guess == labels.to(device)).sum())
                seen += len(labels)
        return right / seen

    def train() -> float:
        torch.manual_seed(0)
        net = SmallNet().to(device)
        optimizer = build_optimizer(net, RECIPE.optimizer)
        schedule = torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda step: schedule_factor(RECIPE.schedule, step, epochs * batches)
        )
        assert RECIPE.gradient_clip is not None
        best, weights = -1.0, net.state_dict()
        loader, evaluation = data.train_dataloader(), data.val_dataloader()
        for _ in range(epochs):
            net.train()
            for series, labels in loader:
                loss = F.cross_entropy(net(series.to(device)), labels.to(device))
                optimizer.zero_grad()
                torch.autograd.backward(loss)
                nn.utils.clip_grad_norm_(net.parameters(), RECIPE.gradient_clip)
                optimizer.step()
                schedule.step()
            if (value := accuracy(net, evaluation)) > best:
                best = value
                weights = {name: tensor.clone() for name, tensor in net.state_dict().items()}
        net.load_state_dict(weights)
        return accuracy(net, data.test_dataloader())

    return train


def engine_fit(epochs: int, batches: int, device: str) -> Callable[[], object]:
    """The engine's fit with everything that a run writes: curves, telemetry, weights."""
    planned = some_run(device)
    folder = stores.temporary_folder()
    run = Store(folder).prepare(planned.key, planned.config.to_dict())
    phase = Phase("main", epochs, selection=Selection("val/accuracy", "max"))

    def fit() -> object:
        torch.manual_seed(0)
        data = SmallData(batches)
        with stores.quiet_lightning():
            return PhaseFit(
                run, planned.config, phase, data, SmallModule(), lambda event: None, lambda: None
            ).fit()

    return fit


def some_run(device: str) -> Planned:
    """A configuration with the engine's own settings at their defaults."""
    accelerator = "cpu" if device == "cpu" else "cuda"
    (planned,) = expand(
        parse(
            [
                f"domain={default_domain()}",
                "dataset=default",
                "attention=standard",
                "seed=0",
                "synthetic=true",
                f"trainer.accelerator={accelerator}",
            ]
        )
    )
    return planned
