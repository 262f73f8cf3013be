"""Packed graphs: batches equal those of PyTorch Geometric, parts and selections hold together."""

from __future__ import annotations

import pytest
import torch
from torch_geometric.data import Batch

from domains.graph.store import PackedGraphs, pack

from .graphs import packed, zinc_like


@pytest.mark.parametrize("index", [[0], [5, 2, 9], [3, 3, 0], list(range(12))])
def test_a_batch_equals_that_of_pytorch_geometric(index):
    graphs = zinc_like(12)
    batch = packed(graphs).take(torch.tensor(index))
    expected = Batch.from_data_list([graphs[i] for i in index])
    for name in ("x", "edge_index", "batch", "ptr"):
        assert torch.equal(batch[name], expected[name]), name
    assert torch.equal(batch.edge_attr[:, 0], expected.edge_attr)
    assert torch.equal(batch.y[:, 0], expected.y)
    assert batch.num_graphs == len(index)
    assert batch.max_nodes == max(len(graphs[i].x) for i in index)
    assert batch.edge_index.is_contiguous()


def test_compact_integers_become_int64_and_floats_stay():
    """Symptom: node numbers of a batch beyond 32,767 ran over."""
    nodes = 20_000
    graph = {
        "x": torch.zeros(nodes, 1, dtype=torch.uint8),
        "edges": torch.tensor([[nodes - 1, 0]], dtype=torch.int16),
        "node_y": torch.ones(nodes, dtype=torch.uint8),
        "rwse": torch.rand(nodes, 3),
    }
    batch = pack([graph] * 3).take(torch.arange(3))
    assert batch.edge_index.tolist() == [[19_999, 39_999, 59_999], [0, 20_000, 40_000]]
    assert {batch.x.dtype, batch.y.dtype, batch.edge_index.dtype} == {torch.int64}
    assert batch.rwse.dtype == torch.float32
    assert batch.num_nodes == 60_000


def test_values_of_a_graph_come_for_each_of_its_nodes():
    graphs = packed(zinc_like(5))
    values = torch.arange(10.0).reshape(5, 2)
    graphs = PackedGraphs({**graphs.arrays, "lap_values": values}, graphs.ptr)
    batch = graphs.take(torch.tensor([4, 1]))
    assert torch.equal(batch.lap_values, values[[4, 1]][batch.batch])


def test_contacts_are_numbered_like_nodes():
    def graph(nodes: int, contacts: list[list[int]]) -> dict:
        return {
            "x": torch.zeros(nodes, 1),
            "edges": torch.zeros(0, 2, dtype=torch.int64),
            "contacts": torch.tensor(contacts, dtype=torch.int16).reshape(-1, 2),
        }

    graphs = pack([graph(3, [[0, 2], [2, 0]]), graph(4, []), graph(5, [[1, 4]])])
    batch = graphs.take(torch.tensor([2, 1, 0]))
    assert batch.contacts.tolist() == [[1, 9, 11], [4, 11, 9]]
    assert batch.contact_graph.tolist() == [0, 2, 2]
    assert batch.edge_index.shape == (2, 0)


def test_parts_and_selections_give_the_same_batches():
    graphs = packed(zinc_like(12))
    part = graphs.part(4, 9)
    assert len(part) == 5
    assert same(part.take(torch.tensor([0, 3])), graphs.take(torch.tensor([4, 7])))
    order = torch.tensor([7, 0, 11])
    chosen = graphs.select(order)
    assert same(chosen.take(torch.arange(3)), graphs.take(order))
    assert same(chosen.part(1, 3).take(torch.tensor([1])), graphs.take(torch.tensor([11])))


def same(one, other) -> bool:
    assert one.to_dict().keys() == other.to_dict().keys()
    return all(
        torch.equal(value, other[key]) if torch.is_tensor(value) else value == other[key]
        for key, value in one.to_dict().items()
    )


def test_moving_keeps_pointers_on_the_host():
    graphs = packed(zinc_like(3)).to(torch.device("meta"))
    assert graphs.device.type == "meta"
    assert graphs.ptr["node"].device.type == "cpu"
    # Sizes are known without a look at the device, so that it never has to wait for an answer.
    batch = graphs.take(torch.tensor([1, 2]))
    assert batch.edge_index.device.type == "meta"
    assert len(batch.batch) == len(batch.x)
