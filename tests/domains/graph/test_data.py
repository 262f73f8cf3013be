"""Batches: their order, what they depend on, and made-up sets of true shapes."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import lightning
import pytest
import torch
from torch import nn
from torch_geometric.data import Data

from domains.common.samplers import Request
from domains.contract import DataCorrupt, Phase
from domains.graph.checks import check_graphs
from domains.graph.config import DatasetConfig
from domains.graph.data import GraphData, GraphSplit, build
from domains.graph.prepare import prepared_set
from domains.graph.store import SPLITS
from domains.graph.tiny import tiny_set

from .graphs import SETS, dataset, mini

MAIN = Phase("main", 1)


@dataclass
class Config:
    """What is read of the engine's configuration."""

    dataset: DatasetConfig = field(default_factory=lambda: dataset("zinc"))
    seed: int = 0
    batch_size: int = 5

    @property
    def recipe(self) -> Any:
        return SimpleNamespace(batch_size=self.batch_size)


def made(name: str = "zinc", **options: Any) -> GraphData:
    cfg = Config(dataset(name), **options)
    return build(cfg, MAIN, tiny_set(cfg.dataset))


def batches(loader: Any, epoch: int = 0) -> list[Data]:
    loader.sampler.set_epoch(epoch)
    return list(loader)


def equal(one: Data, other: Data) -> bool:
    mine, theirs = one.to_dict(), other.to_dict()
    return mine.keys() == theirs.keys() and all(
        torch.equal(value.nan_to_num(-7.0), theirs[key].nan_to_num(-7.0))
        if torch.is_tensor(value)
        else value == theirs[key]
        for key, value in mine.items()
    )


@pytest.mark.parametrize("name", ["zinc", "pcqm_contact"])
def test_batches_depend_on_seed_and_epoch_alone(name):
    """Not on the global generator, on how often a loader was read, or on loader processes."""
    one = batches(made(name).train_dataloader(), 3)
    torch.manual_seed(123)
    loader = made(name).train_dataloader()
    batches(loader, 0)
    assert all(map(equal, one, batches(loader, 3)))
    assert not all(map(equal, one, batches(loader, 2)))
    assert not all(map(equal, one, batches(made(name, seed=1).train_dataloader(), 3)))


def test_a_resumed_fit_reads_the_epoch_it_is_told():
    data = made()
    expected = batches(data.train_dataloader(), 7)
    data.first_epoch = 7
    assert all(map(equal, expected, list(data.train_dataloader())))


def test_reading_batches_leaves_the_global_generator_alone():
    data = made("pcqm_contact")
    state = torch.get_rng_state()
    for loader in (data.train_dataloader(), *data.val_dataloader(), data.test_dataloader()):
        list(loader)
    assert torch.equal(torch.get_rng_state(), state)


def test_every_graph_once_an_epoch_the_last_batch_smaller():
    data = made()
    found = batches(data.train_dataloader(), 1)
    assert [batch.num_graphs for batch in found] == [5] * 9 + [3]
    y = torch.cat([batch.y for batch in found]).flatten().sort().values
    assert torch.equal(y, data.splits["train"].graphs.arrays["graph_y"].flatten().sort().values)


def test_evaluation_keeps_order_and_batch_size_whatever_the_epoch():
    data = made("pcqm_contact")
    val, test = data.val_dataloader()
    assert [batch.split for batch in val] == ["val"] * 4
    assert [batch.split for batch in test] == ["test"] * 4
    assert [batch.num_graphs for batch in val] == [5, 5, 5, 1]
    first = batches(val, 0)
    assert all(map(equal, first, batches(val, 4)))
    assert all(map(equal, batches(test), batches(data.test_dataloader())))


def test_negatives_are_drawn_anew_for_each_seed_split_epoch_and_batch():
    """The same graphs, so that nothing but the draw can differ."""
    graphs = tiny_set(dataset("pcqm_contact")).splits["train"]

    def pairs(split: str, seed: int, epoch: int, number: int) -> tuple:
        batch = GraphSplit(split, graphs, seed)[Request(epoch, number, torch.arange(8))]
        return tuple(map(tuple, batch.pairs.tolist()))

    draws = [("train", 0, 0, 0), ("val", 0, 0, 0), ("train", 1, 0, 0), ("train", 0, 1, 0)]
    draws.append(("train", 0, 0, 1))
    assert len({pairs(*draw) for draw in draws}) == len(draws)
    assert all(pairs(*draw) == pairs(*draw) for draw in draws)


def test_pairs_are_the_contacts_and_twice_as_many_negatives():
    for batch in made("pcqm_contact").train_dataloader():
        contacts = batch.contacts.shape[1]
        assert batch.pair_label.tolist() == [1.0] * contacts + [0.0] * 2 * contacts
        assert torch.equal(batch.pairs[:, :contacts], batch.contacts)
        assert torch.equal(batch.batch[batch.pairs[0]], batch.batch[batch.pairs[1]])
        assert torch.equal(batch.batch[batch.contacts[0]], batch.contact_graph)


class Reader(lightning.LightningModule):
    """Notes the batches that Lightning hands over."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(()))
        self.seen: list[tuple[int, Data]] = []
        self.scored: list[str] = []

    def training_step(self, batch, batch_idx):
        self.seen.append((self.current_epoch, batch))
        return self.weight * 0.0

    def validation_step(self, batch, batch_idx, dataloader_idx=0):
        self.scored.append(batch.split)

    def test_step(self, batch, batch_idx):
        self.scored.append(batch.split)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters())


def test_lightning_reads_each_epoch_in_its_own_order():
    data, reader = made(), Reader()
    trainer = lightning.Trainer(
        max_epochs=2, accelerator="cpu", logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, num_sanity_val_steps=0,
    )  # fmt: skip
    trainer.fit(reader, datamodule=data)
    for epoch in range(2):
        found = [batch for e, batch in reader.seen if e == epoch]
        assert all(map(equal, found, batches(made().train_dataloader(), epoch)))
    assert reader.scored == (["val"] * 4 + ["test"] * 4) * 2
    trainer.test(reader, datamodule=data, verbose=False)
    assert reader.scored[-4:] == ["test"] * 4


def test_info_says_what_the_data_are():
    info = made("peptides_func").info
    assert (info.kind, info.version) == ("synthetic", "1")
    assert info.fingerprint.startswith("sha256:")
    assert info.sizes == {"train": 16, "val": 8, "test": 8, "targets": 10}
    assert made("peptides_func", seed=5).info.fingerprint == info.fingerprint


WIDTHS = {"atom": (9, 3), "categorical": (1, 1)}


@pytest.mark.parametrize("name", SETS)
def test_tiny_sets_have_the_types_and_sizes_of_the_real_ones(name):
    config = dataset(name)
    data = made(name, batch_size=4)
    assert data.info.kind == "synthetic"
    batch = next(iter(data.train_dataloader()))
    nodes = len(batch.x)
    width, edge_width = WIDTHS.get(config.features, (config.node_width, config.edge_width))
    kind = torch.float32 if config.features == "float" else torch.int64
    assert (batch.x.shape[1], batch.x.dtype) == (width, kind)
    if edge_width is None:
        assert "edge_attr" not in batch
    else:
        assert (batch.edge_attr.shape[1], batch.edge_attr.dtype) == (edge_width, kind)
    shape, kind = {
        "graph_regression": ((4, config.targets), torch.float32),
        "multilabel": ((4, config.targets), torch.float32),
        "graph_classification": ((4,), torch.int64),
        "node_classification": ((nodes,), torch.int64),
        "contact": (None, None),
    }[config.task]
    if shape is None:
        assert "y" not in batch
    else:
        assert (tuple(batch.y.shape), batch.y.dtype) == (shape, kind)
    assert ("rwse" in batch) == (config.rwse_steps > 0)
    for key, steps in (("rwse", config.rwse_steps), ("lap_vectors", config.lap_pairs),
                       ("lap_values", config.lap_pairs)):  # fmt: skip
        assert (key in batch) == (steps > 0)
        if steps:
            assert (tuple(batch[key].shape), batch[key].dtype) == ((nodes, steps), torch.float32)
    for split in SPLITS:
        graphs = data.splits[split].graphs
        for axis, published in (("node", config.mean_nodes), ("edge", config.mean_edges)):
            mean = float(graphs.counts(axis).double().mean())
            assert mean == pytest.approx(published, rel=0.25), axis


@pytest.mark.parametrize("name", SETS)
def test_tiny_sets_are_the_same_every_time(name):
    one, again = tiny_set(dataset(name)), tiny_set(dataset(name))
    assert one.fingerprint == again.fingerprint
    assert one.fingerprint != tiny_set(dataset("zinc" if name != "zinc" else "cluster")).fingerprint


def test_both_answers_occur_in_every_label_of_tiny_peptides():
    y = tiny_set(dataset("peptides_func")).splits["train"].arrays["graph_y"]
    assert ((y.mean(0) > 0.0) & (y.mean(0) < 1.0)).all()


def test_neighbour_graphs_are_directed():
    graphs = tiny_set(dataset("cifar10_sp")).splits["train"].part(0, 1)
    edges = {tuple(edge) for edge in graphs.arrays["edges"].tolist()}
    assert len(edges) == 8 * len(graphs.arrays["x"])
    assert any((target, source) not in edges for source, target in edges)


def test_a_tiny_set_of_no_set_is_refused():
    with pytest.raises(ValueError, match=r"dataset.name='mutag' is no set of this domain; there"):
        tiny_set(mini(name="mutag"))


@pytest.mark.parametrize(
    ("name", "array", "value", "message"),
    [
        ("peptides_func", "x", 119, "column 0 has values from 5 to 119, expected are 0 to 118"),
        ("pascalvoc_sp", "x", float("nan"), "node features that are not finite"),
        ("pascalvoc_sp", "node_y", 21, r"labels from \d+ to 21, expected are 0 to 20"),
        ("pcqm_contact", "contacts", 5000, "contacts that name a node outside of their graph"),
    ],
)
def test_values_that_a_set_cannot_have_are_refused(name, array, value, message):
    graphs = tiny_set(dataset(name)).splits["train"]
    check_graphs(dataset(name), graphs, "here")
    graphs.arrays[array].view(-1)[0] = value
    with pytest.raises(DataCorrupt, match=f"here: .*{message}"):
        check_graphs(dataset(name), graphs, "here")


def test_sample_of_zinc(data_dir):
    """Official validation and test graphs; the training graphs are others, and that is said."""
    cfg = Config(batch_size=32)
    data = build(cfg, MAIN, prepared_set(cfg.dataset))
    assert data.info.kind == "sample"
    assert [note[:40] for note in data.info.notes] == ["training graphs are zinc_train10k, 10,00"]
    assert data.info.fingerprint.startswith("sha256:cda86d90ce9f")
    assert data.info.sizes == {
        "train": 10_000, "val": 1_000, "test": 1_000, "node_types": 28, "edge_types": 4,
        "targets": 1,
    }  # fmt: skip
    loader = data.train_dataloader()
    assert len(loader) == 313
    batch = next(iter(loader))
    assert batch.num_graphs == 32
    assert batch.rwse.shape == (batch.num_nodes, 20)
    assert len(data.test_dataloader()) == 32
    for name in SPLITS:
        walks = data.splits[name].graphs.arrays["rwse"]
        assert (walks[:, 0] == 0.0).all()
        assert (walks[:, 1:].std(0) > 0.0).all()
        assert float(walks.max()) <= 1.0 + 1e-6
