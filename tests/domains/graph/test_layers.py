"""The GPS layer against the reference's, and the two operations on edges against plain ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch_geometric.nn import GINEConv

from attention import AttentionFactory
from domains.graph.config import ModelConfig
from domains.graph.edges import Edges, gather, membership, spread
from domains.graph.layers import GINE, GatedGCN, GPSLayer
from domains.graph.layout import Layout

from .helpers import graph_of, starts_of, stored

OUTPUTS = {"atol": 1e-5, "rtol": 1e-5}
GRADIENTS = {"atol": 2e-5, "rtol": 1e-4}
STATISTICS = {"atol": 2e-6, "rtol": 0}

RENAMED = {
    "self_attn.in_proj_weight": "attention.qkv_proj.weight",
    "self_attn.in_proj_bias": "attention.qkv_proj.bias",
    "self_attn.out_proj": "attention.out_proj",
    "local_model.nn.0": "local.expand",
    "local_model.nn.2": "local.contract",
    "local_model.A": "local.own",
    "local_model.B": "local.sent",
    "local_model.C": "local.edge",
    "local_model.D": "local.gate_target",
    "local_model.E": "local.gate_source",
    "local_model.bn_node_x": "local.norm_nodes",
    "local_model.bn_edge_e": "local.norm_edges",
    "ff_linear1": "expand",
    "ff_linear2": "contract",
    "norm1_local": "norm_local.norm",
    "norm1_attn": "norm_attention.norm",
    "norm2": "norm_out.norm",
}


def ours(name: str) -> str:
    """Our name of a parameter or buffer of the reference."""
    for theirs, renamed in RENAMED.items():
        if name.startswith(theirs):
            return renamed + name.removeprefix(theirs)
    raise KeyError(name)


def close(actual: Tensor, expected: np.ndarray, tolerance: dict[str, float], what: str) -> None:
    torch.testing.assert_close(
        actual, torch.from_numpy(expected), **tolerance, msg=lambda message: f"{what}: {message}"
    )


class Case:
    """One file of vectors: a layer with the stored values, and its input."""

    def __init__(self, file: str, packing: str) -> None:
        self.stored = stored(file)
        self.config = ModelConfig(
            layers=2,  # the last layer of a model leaves out its edge states
            width=16,
            heads=int(self.stored["num_heads"]),
            local="gatedgcn" if "gatedgcn" in file else "gine",
            attention_dropout=0.0,
            packing=packing,
            encoding="none",
        )
        self.variant = "quest" if "quest" in file else "standard"
        sizes = self.stored["num_nodes_per_graph"].tolist()
        self.starts = starts_of(sizes)
        self.graph = torch.from_numpy(self.stored["batch"])
        assert torch.equal(self.graph, graph_of(sizes))
        self.edges = Edges(torch.from_numpy(self.stored["edge_index"]), len(self.graph))

    def layer(self) -> GPSLayer:
        layer = GPSLayer(self.config, AttentionFactory(self.variant), 0)
        values = {
            ours(name.partition(".")[2]): torch.from_numpy(np.asarray(self.stored[name]))
            for name in self.stored
            if name.startswith(("param.", "buffer.")) and not name.endswith(".eps")
        }
        layer.load_state_dict(values)
        return layer

    def run(self, layer: GPSLayer) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Inputs that take gradients, and both outputs."""
        x = torch.from_numpy(self.stored["x"]).requires_grad_()
        edge = torch.from_numpy(self.stored["edge_attr"]).requires_grad_()
        layout = Layout(self.config.packing, self.starts)
        return x, edge, *layer(x, edge, self.edges, layout, self.graph)

    def check_gradients(self, prefix: str, layer: GPSLayer, x: Tensor, edge: Tensor) -> None:
        close(x.grad, self.stored[f"{prefix}grad_x"], GRADIENTS, "x")
        close(edge.grad, self.stored[f"{prefix}grad_edge_attr"], GRADIENTS, "edge_attr")
        parameters = dict(layer.named_parameters())
        for name in self.stored:
            if name.startswith(f"{prefix}grad."):
                parameter = parameters.pop(ours(name.removeprefix(f"{prefix}grad.")))
                close(parameter.grad, self.stored[name], GRADIENTS, name)
        # Without a loss on the edges, their batch norm gets no gradient.
        assert all("norm_edges" in name and p.grad is None for name, p in parameters.items())


FILES = ["gps_layer_gine", "gps_layer_gatedgcn", "gps_layer_gine_quest"]
PACKINGS = ["dense", "grouped", "packed"]


@pytest.fixture(autouse=True)
def _small_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """Graphs as small as these would all go into one group."""
    monkeypatch.setattr("domains.graph.layout.PADDING_SCORES", 4)


@pytest.mark.parametrize("packing", PACKINGS)
@pytest.mark.parametrize("file", FILES)
def test_equals_the_reference_layer_in_values_gradients_and_statistics(file: str, packing: str):
    case = Case(file, packing)
    layer = case.layer().eval()
    _, _, out, edge_out = case.run(layer)
    close(out, case.stored["out_eval"], OUTPUTS, "out_eval")
    if case.config.local == "gatedgcn":
        close(edge_out, case.stored["edge_out_eval"], OUTPUTS, "edge_out_eval")

    layer.train()
    x, edge, out, edge_out = case.run(layer)
    close(out, case.stored["out_train_dropout0"], OUTPUTS, "out_train")
    for name, buffer in layer.named_buffers():
        theirs = next(key for key in RENAMED if name.startswith(RENAMED[key]))
        key = f"buffer_after_train.{theirs}{name.removeprefix(RENAMED[theirs])}"
        close(buffer, np.asarray(case.stored[key]), STATISTICS, name)
    (out * torch.from_numpy(case.stored["w"])).sum().backward()
    case.check_gradients("", layer, x, edge)


def test_gradients_through_the_edge_states():
    case = Case("gps_layer_gatedgcn", "grouped")
    layer = case.layer().train()
    x, edge, out, edge_out = case.run(layer)
    close(edge_out, case.stored["edge_out_train_dropout0"], OUTPUTS, "edge_out_train")
    loss = (out * torch.from_numpy(case.stored["w"])).sum()
    loss += (edge_out * torch.from_numpy(case.stored["w_edge"])).sum()
    loss.backward()
    case.check_gradients("joint_", layer, x, edge)


@pytest.mark.parametrize("packing", PACKINGS)
def test_zero_keys_of_padding_leave_quest_finite(packing: str):
    """With a bias of zero, as it starts, the keys of padding are exactly zero."""
    case = Case("gps_layer_gine_quest", packing)
    layer = case.layer()
    with torch.no_grad():
        layer.attention.qkv_proj.bias.zero_()
    _, _, out, _ = case.run(layer.eval())
    close(out, case.stored["zerobias.out_eval"], OUTPUTS, "out_eval")
    x, edge, out, _ = case.run(layer.train())
    close(out, case.stored["zerobias.out_train_dropout0"], OUTPUTS, "out_train")
    (out * torch.from_numpy(case.stored["w"])).sum().backward()
    case.check_gradients("zerobias.", layer, x, edge)


def test_the_last_layer_leaves_out_its_edge_states_and_nothing_else():
    case = Case("gps_layer_gatedgcn", "dense")
    layer = case.layer().eval()
    layer.edge_out = False
    _, edge, out, edge_out = case.run(layer)
    close(out, case.stored["out_eval"], OUTPUTS, "out_eval")
    assert edge_out is edge
    flags = [GPSLayer(case.config, AttentionFactory(), i).edge_out for i in range(2)]
    assert flags == [True, False]


def test_gine_is_the_operator_of_torch_geometric():
    config = ModelConfig(layers=1, width=8, heads=2, local="gine", encoding="none")
    local = GINE(config)
    theirs = GINEConv(torch.nn.Sequential(local.expand, torch.nn.ReLU(), local.contract))
    x, edge = torch.randn(6, 8), torch.randn(20, 8)
    edge_index = torch.randint(6, (2, 20))
    torch.testing.assert_close(
        local(x, edge, Edges(edge_index, 6)), theirs(x, edge_index, edge), atol=1e-6, rtol=1e-5
    )


def plain_gated(local: GatedGCN, x: Tensor, edge: Tensor, edge_index: Tensor) -> Tensor:
    """The sum of the formula, edge after edge; x' before its batch norm."""
    above, below = torch.zeros_like(x), torch.zeros_like(x)
    for j, i, e in zip(*edge_index.tolist(), edge, strict=True):
        gate = torch.sigmoid(local.gate_target(x[i]) + local.gate_source(x[j]) + local.edge(e))
        above[i] += gate * local.sent(x[j])
        below[i] += gate
    return local.own(x) + above / (below + 1e-6)


def test_gated_gcn_equals_its_formula():
    config = ModelConfig(layers=1, width=8, heads=2, activation="gelu", encoding="none")
    local = GatedGCN(config).eval()
    x, edge, edge_index = torch.randn(5, 8), torch.randn(9, 8), torch.randint(5, (2, 9))
    out, _ = local(x, edge, Edges(edge_index, 5), True)
    new = local.norm_nodes(plain_gated(local, x, edge, edge_index))
    torch.testing.assert_close(out, x + torch.nn.functional.gelu(new), atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gather_and_spread_equal_plain_indexing(dtype: torch.dtype):
    owner = torch.tensor([3, 0, 3, 3, 5, 0])
    members = membership(owner, 7)
    rows = torch.randn(6, 4, dtype=dtype)
    expected = torch.zeros(7, 4, dtype=dtype).index_add(0, owner, rows)
    torch.testing.assert_close(gather(rows, members), expected)
    owners = torch.randn(7, 4, dtype=dtype)
    assert torch.equal(spread(owners, members), owners[owner])
    assert members.counts.tolist() == [2, 0, 0, 3, 0, 1, 0]


def test_gather_and_spread_have_right_derivatives_of_both_orders():
    members = membership(torch.tensor([3, 0, 3, 1]), 5)
    rows = torch.randn(4, 2, dtype=torch.float64, requires_grad=True)
    owners = torch.randn(5, 2, dtype=torch.float64, requires_grad=True)
    for function, value in ((gather, rows), (spread, owners)):
        operation: Any = lambda v, f=function: f(v, members)  # noqa: E731
        assert torch.autograd.gradcheck(operation, value)
        assert torch.autograd.gradgradcheck(operation, value)


def test_a_batch_without_edges():
    edges = Edges(torch.empty(2, 0, dtype=torch.long), 3)
    x = torch.randn(3, 4, requires_grad=True)
    out = edges.sum_arriving(edges.of_source(x))
    assert torch.equal(out, torch.zeros(3, 4))
    out.sum().backward()
    assert torch.equal(x.grad, torch.zeros(3, 4))


def test_layer_norm_of_whole_graphs():
    """Mean and variance over all nodes and columns of a graph, by hand."""
    config = ModelConfig(layers=1, width=4, heads=2, norm="graph", encoding="none")
    norm = GPSLayer(config, AttentionFactory(), 0).norm_out
    x = torch.randn(5, 4)
    out = norm(x, graph_of([2, 3]))
    for rows in (slice(0, 2), slice(2, 5)):
        part = x[rows]
        expected = (part - part.mean()) / (part.var(unbiased=False) + 1e-5).sqrt()
        torch.testing.assert_close(out[rows], expected)
