"""The Transformer: TSLib's numbers, parameter counts, read-outs, padding."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from attention import AttentionFactory, registry
from attention.tags import tag_of
from domains.base import parameter_counts
from domains.timeseries.config import ModelConfig
from domains.timeseries.domain import DOMAIN
from domains.timeseries.model import TimeSeriesTransformer, sine_positions

from .helpers import PAPER_SETS, Config, dataset, module_of, small_model

VECTORS = Path(__file__).parents[2] / "vectors"

# Total parameters as TSLib counts them, its never used linear map of time features included.
TABLE = {
    "EthanolConcentration": (1_295_876, 400_004),
    "FaceDetection": (469_378, 453_890),
    "Handwriting": (905_242, 402_842),
    "Heartbeat": (525_314, 422_018),
    "JapaneseVowels": (436_233, 404_105),
    "PEMS-SF": (897_031, 769_031),
    "SelfRegulationSCP1": (629_890, 400_898),
    "SelfRegulationSCP2": (695_810, 401_282),
    "SpokenArabicDigits": (522_250, 404_618),
    "UWaveGestureLibrary": (721_928, 400_520),
}
UNUSED_TIME_MAP = 4 * 128
ATTENTION = 3 * 4 * (128 * 128 + 128)


def net_of(config: ModelConfig, variant: str = "standard", **options) -> TimeSeriesTransformer:
    torch.manual_seed(0)
    sizes = {"channels": 3, "classes": 4, "length": 11, "mask_padding": True, **options}
    return TimeSeriesTransformer(config, AttentionFactory(variant), **sizes)


def renamed(name: str) -> str:
    """Our name of a parameter of the reference."""
    for theirs, ours in (
        ("enc_embedding.value_embedding.tokenConv", "embedding.values"),
        ("enc_embedding.temporal_embedding.embed.weight", "embedding.time_features"),
        ("encoder.attn_layers", "encoder.layers"),
        ("query_projection", "q_proj"),
        ("key_projection", "k_proj"),
        ("value_projection", "v_proj"),
        ("out_projection", "out_proj"),
        ("conv1", "expand"),
        ("conv2", "contract"),
        ("projection", "readout.classify"),
    ):
        if theirs in name:
            name = name.replace(theirs, ours)
            if ours == "readout.classify":
                break
    return name


def reshaped(name: str, value: np.ndarray) -> Tensor:
    """A convolution's (out, in, width) as the weight of a linear map."""
    tensor = torch.from_numpy(value)
    return tensor.transpose(1, 2).flatten(1) if tensor.dim() == 3 else tensor


def test_equals_tslib_in_outputs_and_gradients():
    """Flat read-out, attention without mask. Tolerance 5e-6, gradients 2e-6."""
    stored = np.load(VECTORS / "tslib_transformer.npz", allow_pickle=False)
    config = small_model(readout="flat", dropout=0.0, heads=int(stored["num_heads"]))
    net = net_of(config, mask_padding=False)
    theirs = {k.removeprefix("param."): stored[k] for k in stored if k.startswith("param.")}
    net.load_state_dict({renamed(name): reshaped(name, value) for name, value in theirs.items()})

    positions = torch.from_numpy(stored["position_embedding_first_11"])
    torch.testing.assert_close(sine_positions(11, 16), positions, atol=1e-6, rtol=0)
    x = torch.from_numpy(stored["x"]).requires_grad_()
    lengths = torch.from_numpy(stored["lengths"])
    close = {"atol": 5e-6, "rtol": 0}
    embedding = net.embedding(x, lengths)
    torch.testing.assert_close(embedding, torch.from_numpy(stored["embedding"]), **close)
    encoded = net.encoder(embedding, None)
    torch.testing.assert_close(encoded, torch.from_numpy(stored["encoder_out"]), **close)
    logits = net(x, lengths)
    torch.testing.assert_close(logits, torch.from_numpy(stored["out_eval"]), **close)
    net.eval()
    torch.testing.assert_close(net(x, lengths), logits)

    loss = F.cross_entropy(logits, torch.from_numpy(stored["target"]))
    torch.testing.assert_close(loss, torch.tensor(float(stored["loss"])), **close)
    loss.backward()
    close = {"atol": 2e-6, "rtol": 0}
    torch.testing.assert_close(x.grad, torch.from_numpy(stored["grad_x"]), **close)
    for name in theirs:
        ours = net.get_parameter(renamed(name)).grad
        if f"grad.{name}" not in stored:  # the map of time features, in use nowhere
            assert ours is None
            continue
        expected = reshaped(name, stored[f"grad.{name}"])
        torch.testing.assert_close(ours, expected, **close, msg=lambda m, n=name: f"{n}: {m}")


def plain_cls(net: TimeSeriesTransformer, x: Tensor, heads: int) -> Tensor:
    """Logits of one unpadded series (L, C) by the formulas, all positions of all layers."""
    width = net.embedding.values.out_features
    p = dict(net.named_parameters())
    conv = p["embedding.values.weight"].unflatten(1, (3, -1)).transpose(1, 2)
    padded = F.pad(x.T[None], (1, 1), mode="circular")
    h = F.conv1d(padded, conv)[0].T + sine_positions(len(x), width)
    h = torch.cat([p["embedding.token"][None], h])
    for i in range(len(net.encoder.layers)):
        w = {k.removeprefix(f"encoder.layers.{i}."): v for k, v in p.items()}

        def linear(name: str, h: Tensor, w=w) -> Tensor:
            return F.linear(h, w[f"{name}.weight"], w[f"{name}.bias"])

        def norm(name: str, h: Tensor, w=w) -> Tensor:
            return F.layer_norm(h, (width,), w[f"{name}.weight"], w[f"{name}.bias"])

        q, k, v = (
            linear(f"attention.{n}_proj", h).view(len(h), heads, -1).transpose(0, 1) for n in "qkv"
        )
        weights = (q @ k.mT / math.sqrt(width / heads)).softmax(-1)
        attended = (weights @ v).transpose(0, 1).flatten(1)
        h = norm("norm1", h + linear("attention.out_proj", attended))
        h = norm("norm2", h + linear("contract", F.gelu(linear("expand", h))))
    h = F.layer_norm(h, (width,), p["encoder.norm.weight"], p["encoder.norm.bias"])
    return F.linear(F.gelu(h[0]), p["readout.classify.weight"], p["readout.classify.bias"])


def test_cls_readout_equals_its_formula_also_for_padded_series():
    config = small_model(dropout=0.0)
    net = net_of(config)
    lengths = torch.tensor([11, 4, 1, 8])
    x = torch.randn(4, 11, 3) * (torch.arange(11) < lengths[:, None])[..., None]
    expected = torch.stack(
        [plain_cls(net, one[:n], config.heads) for one, n in zip(x, lengths, strict=True)]
    )
    torch.testing.assert_close(net(x, lengths), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", PAPER_SETS)
@pytest.mark.parametrize("variant", ["standard", "quest", "qnorm"])
@pytest.mark.parametrize("readout", ["flat", "cls"])
def test_parameter_counts_of_the_published_table(name, variant, readout):
    cfg = Config(dataset=dataset(name), model=ModelConfig(readout=readout), protocol="tslib")
    sizes = DOMAIN.known_sizes(cfg)
    assert sizes is not None
    with torch.device("meta"):
        counts = parameter_counts(DOMAIN.build_module(cfg, AttentionFactory(variant), sizes))
    published = TABLE[name][readout == "cls"]
    assert counts["total"] == published
    assert counts["attention"] == ATTENTION
    assert counts["total"] == sum(counts["parts"].values())
    assert counts["trainable"] == counts["total"] - UNUSED_TIME_MAP


def test_every_parameter_gets_a_gradient():
    for readout in ("cls", "flat"):
        net = net_of(small_model(readout=readout, dropout=0.0))
        net(torch.randn(2, 11, 3)).square().sum().backward()
        assert [n for n, p in net.named_parameters() if (p.grad is None) == p.requires_grad] == []


@pytest.mark.parametrize("variant", registry.names())
@pytest.mark.parametrize("readout", ["cls", "flat"])
def test_padding_changes_neither_logits_nor_gradients(variant, readout):
    """Symptom: accuracy depended on the evaluation batch, because padding was attended to."""
    net = net_of(small_model(readout=readout, dropout=0.0), variant, length=20)
    lengths = torch.tensor([9, 4, 7])
    x = torch.randn(3, 9, 3) * (torch.arange(9) < lengths[:, None])[..., None]
    weights = torch.randn(3, 4)

    def run(series: Tensor, lengths: Tensor | None) -> tuple[Tensor, list[Tensor]]:
        logits = net(series, lengths)
        return logits, torch.autograd.grad(
            (logits * weights).sum(), [p for p in net.parameters() if p.requires_grad]
        )

    logits, grads = run(x, lengths)
    garbage = torch.cat([x, torch.full((3, 8, 3), 1e3)], dim=1)
    garbage = garbage.where((torch.arange(17) < lengths[:, None])[..., None], 1e3)
    others, other_grads = run(garbage, lengths)
    torch.testing.assert_close(others, logits, atol=1e-5, rtol=1e-5)
    for a, b in zip(grads, other_grads, strict=True):
        assert torch.isfinite(b).all()
        torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-4)
    for row, steps in enumerate(lengths):
        alone, _ = net(x[row : row + 1, :steps]), None
        torch.testing.assert_close(alone[0], logits[row], atol=1e-5, rtol=1e-5)


def test_padding_is_attended_to_under_tslib():
    net = net_of(small_model(dropout=0.0), mask_padding=False)
    x, lengths = torch.randn(2, 9, 3), torch.tensor([9, 5])
    x[1, 5:] = 0.0
    assert not torch.allclose(net(x, lengths)[1], net(x[1:, :5])[0], atol=1e-3)
    torch.testing.assert_close(net(x, lengths), net(x, None))


@pytest.mark.parametrize("variant", registry.names())
def test_exchange_of_the_variant_changes_attention_parameters_only(variant):
    sizes = {"channels": 3, "classes": 4, "length": 11}
    cfg = Config(model=small_model())
    ours, standard = (module_of(cfg, sizes, name).net for name in (variant, "standard"))
    tags = tag_of(ours)
    weights = dict(standard.named_parameters())
    for name, parameter in ours.named_parameters():
        if name in weights:
            assert torch.equal(parameter, weights.pop(name)), name
        else:
            assert name in tags
    assert not weights


def test_options_of_the_token():
    x = torch.randn(2, 11, 3)
    default = net_of(small_model(dropout=0.0))
    assert default.embedding.token.std() < 0.05
    assert not default.embedding.token.eq(0).any()
    assert net_of(small_model(token_init="zeros")).embedding.token.eq(0).all()

    shifted = net_of(small_model(dropout=0.0, token_position=True))
    difference = shifted.embedding(x, None) - default.embedding(x, None)
    positions = sine_positions(12, 16)
    torch.testing.assert_close(difference[0, 0], positions[0])
    torch.testing.assert_close(difference[0, 1:], positions[1:] - positions[:-1])

    linear = net_of(small_model(dropout=0.0, head="linear"))
    hidden = torch.randn(2, 1, 16)
    torch.testing.assert_close(linear.readout(hidden, None), linear.readout.classify(hidden[:, 0]))
    for token_dropout in (False, True):
        net = net_of(small_model(dropout=0.5, token_dropout=token_dropout))
        dropped = net.embedding(x, None)[:, 0].eq(0).any()
        assert bool(dropped) is token_dropout


def test_longer_series_than_any_in_training():
    x = torch.randn(2, 30, 3)
    assert net_of(small_model())(x).shape == (2, 4)
    with pytest.raises(ValueError, match="built for 11 steps and got 30"):
        net_of(small_model(readout="flat"))(x)


def test_training_differs_and_two_evaluations_agree():
    net, x = net_of(small_model()), torch.randn(2, 11, 3)
    assert not torch.equal(net(x), net(x))
    net.eval()
    assert torch.equal(net(x), net(x))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"readout": "mean"}, "model.readout='mean' is unknown; allowed: cls, flat"),
        ({"token_init": "ones"}, "model.token_init='ones' is unknown; allowed: normal, zeros"),
        ({"head": "mlp"}, "model.head='mlp' is unknown; allowed: gelu, linear"),
        ({"width": 17}, "model.width=17 must be even"),
        ({"width": 18}, "model.width=18 must be a multiple of model.heads=4"),
        ({"width": 0}, "model.width=0 must be at least 1"),
        ({"layers": 0}, "model.layers=0 must be at least 1"),
        ({"heads": 0}, "model.heads=0 must be at least 1"),
        ({"feedforward": 0}, "model.feedforward=0 must be at least 1"),
        ({"dropout": 1.0}, "model.dropout=1.0 must be at least 0 and below 1"),
        ({"dropout": float("nan")}, "model.dropout=nan"),
    ],
)
def test_wrong_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        small_model(**options)


def test_a_bfloat16_model_takes_a_series_longer_than_training():
    net = net_of(small_model()).to(torch.bfloat16).eval()
    assert net(torch.randn(2, 15, 3, dtype=torch.bfloat16)).isfinite().all()
