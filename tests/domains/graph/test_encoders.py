"""Encoders of nodes, edges and positions."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from domains.graph.config import DatasetConfig, ModelConfig
from domains.graph.encoders import EdgeEncoder, LaplacianEncoder, NodeEncoder, RandomWalkEncoder

from .helpers import SIZES, TASKS, batch_of, small_model, small_set, stored

CLOSE = {"atol": 1e-6, "rtol": 1e-5}
RENAMED = {"linear_A": "expand", "pe_encoder.1": "contract"}


def test_the_laplacian_encoding_equals_the_reference():
    """Columns 8 to 15 of the reference's output; the first 8 are its map of the features."""
    vectors = stored("lappe_encoder")
    encoder = LaplacianEncoder(8).eval()
    values = {
        f"{ours}.{kind}": torch.from_numpy(vectors[f"deepset2.param.{theirs}.{kind}"])
        for theirs, ours in RENAMED.items()
        for kind in ("weight", "bias")
    }
    encoder.load_state_dict(values)
    batch = SimpleNamespace(
        lap_vectors=torch.from_numpy(vectors["eigvecs"]),
        lap_values=torch.from_numpy(vectors["eigvals"])[..., 0],
    )
    assert batch.lap_vectors.isnan().any()
    out = encoder(batch)
    torch.testing.assert_close(out, torch.from_numpy(vectors["deepset2.out_eval"])[:, 8:], **CLOSE)
    (out * torch.from_numpy(vectors["w"])[:, 8:]).sum().backward()
    for theirs, ours in RENAMED.items():
        for kind in ("weight", "bias"):
            grad = torch.from_numpy(vectors[f"deepset2.grad.{theirs}.{kind}"])
            torch.testing.assert_close(encoder.get_parameter(f"{ours}.{kind}").grad, grad, **CLOSE)


def test_signs_are_drawn_for_each_eigenvector_of_a_batch_and_in_training_alone():
    dataset = small_set("multilabel")
    batch = batch_of(dataset, (6, 5, 7))
    encoder = LaplacianEncoder(4)
    plain = encoder.eval()(batch)
    assert torch.equal(plain, encoder(batch))
    encoder.train()
    given = [
        encoder.eval()(
            SimpleNamespace(lap_vectors=batch.lap_vectors * s, lap_values=batch.lap_values)
        )
        for s in torch.cartesian_prod(*[torch.tensor([-1.0, 1.0])] * dataset.lap_pairs)
    ]
    encoder.train()
    seen = set()
    for _ in range(40):
        out = encoder(batch)
        seen |= {i for i, expected in enumerate(given) if torch.allclose(out, expected, atol=1e-6)}
    assert len(seen) > 8, "of 16 combinations of signs"


def test_a_pair_that_is_missing_counts_nothing():
    encoder = LaplacianEncoder(4).eval()
    nan = float("nan")
    both = SimpleNamespace(
        lap_vectors=torch.tensor([[0.5, nan]]), lap_values=torch.tensor([[0.1, nan]])
    )
    one = SimpleNamespace(lap_vectors=torch.tensor([[0.5]]), lap_values=torch.tensor([[0.1]]))
    assert torch.equal(encoder(both), encoder(one))


def test_walks_are_normalised_over_the_nodes_of_a_batch():
    encoder = RandomWalkEncoder(3, 5)
    rwse = torch.rand(20, 3)
    out = encoder(SimpleNamespace(rwse=rwse))
    normed = (rwse - rwse.mean(0)) / (rwse.var(0, unbiased=False) + 1e-5).sqrt()
    torch.testing.assert_close(out, encoder.map(normed), atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("task", TASKS)
def test_the_encoding_stands_behind_the_features(task: str):
    dataset = small_set(task)
    batch = batch_of(dataset)
    encoder = NodeEncoder(small_model(dataset), dataset).eval()
    out = encoder(batch)
    assert out.shape == (sum(SIZES), 16)
    assert torch.equal(out[:, :12], encoder.features(batch.x))
    assert torch.equal(out[:, 12:], encoder.encoding(batch))
    edges = EdgeEncoder(small_model(dataset), dataset)(batch)
    assert edges.shape == (batch.edge_index.shape[1], 16)
    if dataset.edge_width is None and dataset.features == "float":
        assert torch.equal(edges[0], edges[-1])


def test_molecules_sum_one_embedding_for_each_column():
    dataset = small_set("multilabel", lap_pairs=0)
    batch = batch_of(dataset)
    encoder = NodeEncoder(small_model(dataset), dataset)
    columns = encoder.features.columns
    expected = sum(columns[i].weight[batch.x[3, i]] for i in range(9))
    torch.testing.assert_close(encoder(batch)[3], expected)
    # Xavier: uniform up to sqrt(6 / (values + width)).
    bound = (6 / (119 + 16)) ** 0.5
    assert 0.9 * bound < columns[0].weight.abs().max() <= bound


def test_inputs_are_standardised_by_fixed_constants():
    dataset = small_set("graph_classification", lap_pairs=0)
    constants = {
        "node_mean": [1.0, 2.0, 3.0, 4.0, 5.0],
        "node_sd": [2.0, 2.0, 2.0, 2.0, 4.0],
        "edge_mean": [0.5],
        "edge_sd": [0.25],
    }
    batch = batch_of(dataset)
    nodes = NodeEncoder(small_model(dataset, **constants), dataset)
    mean, sd = torch.tensor(constants["node_mean"]), torch.tensor(constants["node_sd"])
    torch.testing.assert_close(nodes(batch), nodes.features[-1]((batch.x - mean) / sd))
    edges = EdgeEncoder(small_model(dataset, **constants), dataset)
    torch.testing.assert_close(edges(batch), edges.features[-1]((batch.edge_attr - 0.5) / 0.25))
    assert not [name for name in nodes.state_dict() if "mean" in name], "no part of the weights"


@pytest.mark.parametrize(
    ("dataset", "options", "message"),
    [
        (
            small_set("multilabel"),
            {"encoding": "rwse"},
            "model.encoding=rwse reads what dataset.rwse_steps=0 does not prepare",
        ),
        (
            small_set("graph_regression"),
            {"encoding": "lappe"},
            "model.encoding=lappe reads what dataset.lap_pairs=0 does not prepare",
        ),
        (
            small_set("graph_classification"),
            {"node_mean": [1.0], "node_sd": [1.0]},
            "model.node_mean has 1 numbers, dataset.node_width=5",
        ),
    ],
)
def test_model_and_set_must_fit(dataset: DatasetConfig, options: dict, message: str):
    config = ModelConfig(width=16, heads=4, encoding_width=4, **options)
    with pytest.raises(ValueError, match=message):
        NodeEncoder(config, dataset)
