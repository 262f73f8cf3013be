"""The whole model: published sizes, one result however graphs are laid out."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor

from attention import AttentionFactory
from benchmarks.config import compose_run, run_config
from domains.base import parameter_counts
from domains.graph.config import ModelConfig
from domains.graph.domain import DOMAIN
from domains.graph.model import GPSModel
from domains.graph.module import task_loss

from .graphs import SETS
from .helpers import TASKS, batch_of, small_model, small_set

COUNTS = {
    "zinc": (423_717, 166_400),
    "cifar10_sp": (112_726, 33_072),
    "pattern": (337_201, 99_840),
    "cluster": (502_054, 150_528),
    "pascalvoc_sp": (510_453, 148_992),
    "coco_sp": (516_273, 148_992),
    "pcqm_contact": (512_784, 148_992),
    "peptides_func": (504_442, 148_992),
    "peptides_struct": (504_539, 148_992),
}
"""Parameters in all and in the attention, as GraphGPS's configuration files give them."""

OLD_CHIRALITY_ROW = 80
"""One row of an embedding: OGB listed four kinds of chirality when the counts were published."""

PUBLISHED = {"pcqm_contact": 512_704, "peptides_func": 504_362, "peptides_struct": 504_459}


@pytest.mark.parametrize("variant", ["standard", "quest", "qnorm"])
@pytest.mark.parametrize("name", SETS)
def test_parameter_counts_of_the_published_models(name: str, variant: str):
    cfg = run_config(compose_run({"domain": "graph", "dataset": name}, {}))
    with torch.device("meta"):
        module = DOMAIN.build_module(cfg, AttentionFactory(variant), DOMAIN.known_sizes(cfg))
    counts = parameter_counts(module)
    assert (counts["total"], counts["attention"]) == COUNTS[name]
    assert counts["total"] == sum(counts["parts"].values())
    if name in PUBLISHED:
        assert counts["total"] - OLD_CHIRALITY_ROW == PUBLISHED[name]


def model(task: str, variant: str = "standard", **options: Any) -> GPSModel:
    torch.manual_seed(0)
    dataset = small_set(task)
    config = small_model(dataset, **{"attention_dropout": 0.0, **options})
    return GPSModel(config, dataset, AttentionFactory(variant)).double()


def double(batch: Any) -> Any:
    """A batch with all floats in double precision."""
    return batch.apply(lambda t: t.double() if t.is_floating_point() else t)


@pytest.mark.parametrize("variant", ["standard", "quest", "elliptical"])
@pytest.mark.parametrize("task", TASKS)
def test_layouts_change_neither_values_nor_gradients(
    task: str, variant: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("domains.graph.layout.PADDING_SCORES", 8)
    batch = double(batch_of(small_set(task), (1, 9, 4, 17, 5, 16)))
    found = {}
    for packing in ("dense", "grouped", "packed"):
        net = model(task, variant, packing=packing)
        torch.manual_seed(1)  # the signs of eigenvectors
        output = net(batch)
        grads = torch.autograd.grad(
            task_loss(task, output, batch), list(net.parameters()), allow_unused=True
        )
        found[packing] = output, grads
    output, grads = found.pop("dense")
    for other, other_grads in found.values():
        torch.testing.assert_close(other, output)
        for grad, expected in zip(other_grads, grads, strict=True):
            if expected is None:
                assert grad is None
            else:
                torch.testing.assert_close(grad, expected)


def joined(first: Any, second: Any, dataset: Any) -> Any:
    """Two batches side by side."""
    both = copy.copy(first)
    shift = len(first.x)
    for key in ("x", "edge_attr", "rwse", "lap_vectors", "lap_values", "y"):
        if getattr(first, key, None) is not None:
            setattr(both, key, torch.cat([getattr(first, key), getattr(second, key)]))
    both.edge_index = torch.cat([first.edge_index, shift + second.edge_index], 1)
    both.batch = torch.cat([first.batch, first.num_graphs + second.batch])
    both.ptr = torch.cat([first.ptr, shift + second.ptr[1:]])
    both.num_graphs = first.num_graphs + second.num_graphs
    return both


@pytest.mark.parametrize("packing", ["dense", "grouped", "packed"])
@pytest.mark.parametrize("task", ["graph_regression", "graph_classification", "multilabel"])
def test_a_large_neighbour_in_the_batch_changes_no_prediction(task: str, packing: str):
    """In evaluation: more padding for the small graphs, and nothing else."""
    dataset = small_set(task)
    small, large = (double(batch_of(dataset, s, seed=1)) for s in ((3, 5, 1), (60,)))
    net = model(task, "quest", packing=packing).eval()
    alone, together = net(small), net(joined(small, large, dataset))
    torch.testing.assert_close(together[:3], alone)
    weight = torch.randn_like(alone)
    wanted = list(net.parameters())
    grads = [
        torch.autograd.grad((out[:3] * weight).sum(), wanted, allow_unused=True)
        for out in (alone, together)
    ]
    for grad, expected in zip(*grads, strict=True):
        if grad is not None:
            assert grad.isfinite().all()
            torch.testing.assert_close(grad, expected)


def permuted(batch: Any, dataset: Any) -> tuple[Any, Tensor]:
    """The batch with the nodes of each graph in another order, and where each node went."""
    order = torch.cat(
        [p + torch.randperm(n) for p, n in zip(batch.ptr, batch.ptr.diff(), strict=False)]
    )
    place = torch.argsort(order)
    other = copy.copy(batch)
    for key in ("x", "rwse", "lap_vectors", "lap_values"):
        if getattr(batch, key, None) is not None:
            setattr(other, key, getattr(batch, key)[order])
    other.edge_index = place[batch.edge_index]
    return other, order


@pytest.mark.parametrize("task", TASKS)
def test_the_order_of_nodes_does_not_matter(task: str):
    dataset = small_set(task)
    batch = double(batch_of(dataset, (6, 1, 9)))
    net = model(task, "quest").eval()
    other, order = permuted(batch, dataset)
    expected = net(batch)
    if task in ("node_classification", "contact"):
        expected = expected[order]
    torch.testing.assert_close(net(other), expected)


def test_every_parameter_gets_a_gradient_but_those_of_the_last_edge_states():
    for task in TASKS:
        batch = double(batch_of(small_set(task)))
        for local in ("gine", "gatedgcn"):
            net = model(task, local=local)
            task_loss(task, net(batch), batch).backward()
            idle = [name for name, p in net.named_parameters() if p.grad is None]
            last = "layers.1.local.norm_edges"
            assert idle == ([f"{last}.weight", f"{last}.bias"] if local == "gatedgcn" else [])


def test_attention_weights_start_as_those_of_one_fused_matrix():
    """Xavier over the stacked (3 D, D) matrix and zero biases, as nn.MultiheadAttention."""
    net = GPSModel(
        ModelConfig(width=64, heads=4, encoding="none"), small_set("contact"), AttentionFactory()
    )
    for layer in net.layers:
        attention = layer.attention
        assert attention.qkv_proj.weight.shape == (192, 64)
        assert float(attention.qkv_proj.weight.detach().std()) == pytest.approx(
            (2 / (64 + 192)) ** 0.5, rel=0.05
        )
        assert not attention.qkv_proj.bias.any()
        assert not attention.out_proj.bias.any()
        assert attention.core.dropout == 0.5


def test_attention_is_reached_and_dropped_from_in_training():
    dataset = small_set("graph_regression")
    batch = batch_of(dataset)
    net = GPSModel(small_model(dataset), dataset, AttentionFactory())
    assert not torch.equal(net(batch), net(batch))
    net.eval()
    assert torch.equal(net(batch), net(batch))
    before = net(batch)
    with torch.no_grad():
        for layer in net.layers:
            layer.attention.out_proj.weight.zero_()
    assert not torch.allclose(net(batch), before)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"local": "gcn"}, "model.local='gcn' is unknown; allowed: gine, gatedgcn"),
        ({"encoding": "spd"}, "model.encoding='spd' is unknown; allowed: none, rwse, lappe"),
        ({"norm": "layer"}, "model.norm='layer' is unknown; allowed: batch, graph"),
        ({"head": "mlp"}, "model.head='mlp' is unknown; allowed: graphgym, san, plain"),
        ({"pooling": "max"}, "model.pooling='max' is unknown; allowed: sum, mean"),
        (
            {"packing": "sparse"},
            "model.packing='sparse' is unknown; allowed: dense, grouped, packed",
        ),
        ({"activation": "elu"}, "model.activation='elu' is unknown; allowed: relu, gelu"),
        ({"width": 18}, "model.width=18 must be a multiple of model.heads=4"),
        ({"layers": 0}, "model.layers=0 must be at least 1"),
        ({"dropout": 1.0}, "model.dropout=1.0 must be at least 0 and below 1"),
        ({"attention_dropout": -0.1}, "model.attention_dropout=-0.1 must be at least 0"),
        (
            {"encoding_width": 16},
            "model.encoding_width=16 must be at least 1 and below model.width",
        ),
        ({"head": "san"}, "model.head_layers=1 must be 3 for san"),
        (
            {"node_mean": [1.0]},
            r"model.node_sd=\[\] must be above 0, and as many as model.node_mean",
        ),
        ({"edge_mean": [1.0], "edge_sd": [0.0]}, r"model.edge_sd=\[0.0\] must be above 0"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], message: str):
    with pytest.raises(ValueError, match=message):
        small_model(small_set("multilabel"), **options)
