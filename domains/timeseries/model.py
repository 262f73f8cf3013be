"""TSLib's classification Transformer with a [CLS] or a flat read-out.

Shapes: B series, L steps, C channels, D width.

Source: thuml/Time-Series-Library at 4e938a1 (MIT), `models/Transformer.py` and `layers/`. Equal to
it in values and gradients (`tests/domains/timeseries/test_model.py`), with differences in form: the
circular convolution and the 1x1 convolutions are linear maps on the last axis; what the [CLS]
read-out does not read of the last layer is not computed; and under `mask_padding` neither attention
nor the circular convolution sees padding.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attention import AttentionFactory, LayerState
from domains.common.dropout import Dropout
from domains.timeseries.config import ModelConfig

TOKEN_SD = 0.02
TIME_FEATURES = 4


class TimeSeriesTransformer(nn.Module):
    """Class logits of multivariate series.

    Args:
        config: size and read-out.
        attention: builds the attention of every layer.
        channels: values a step.
        classes: number of classes.
        length: steps of the longest series; the flat read-out takes exactly that many.
        mask_padding: whether padded steps are hidden, so that the logits of a series do not
            depend on how far it was padded. TSLib does not hide them.
    """

    def __init__(
        self,
        config: ModelConfig,
        attention: AttentionFactory,
        *,
        channels: int,
        classes: int,
        length: int,
        mask_padding: bool,
    ) -> None:
        super().__init__()
        self.mask_padding = mask_padding
        with_token = config.readout == "cls"
        self.embedding = SeriesEmbedding(config, channels, length, mask_padding)
        self.encoder = Encoder(config, attention, mask_padding, read=1 if with_token else None)
        self.readout: nn.Module = (
            TokenReadout(config, classes) if with_token else FlatReadout(config, classes, length)
        )
        self.num_tokens = int(with_token)

    def forward(self, series_blc: Tensor, lengths_b: Tensor | None = None) -> Tensor:
        """Logits (B, classes).

        Args:
            series_blc: (B, L, C) float, zero behind the end of a series.
            lengths_b: (B,) int64 real steps; None if all series are L long.
        """
        mask = None
        if lengths_b is not None and self.mask_padding:
            # Tokens stand before the steps and are always visible: no row is fully masked.
            positions = torch.arange(series_blc.shape[1] + self.num_tokens, device=lengths_b.device)
            mask = positions < (lengths_b + self.num_tokens)[:, None]
        hidden = self.encoder(self.embedding(series_blc, lengths_b), mask)
        logits: Tensor = self.readout(hidden, lengths_b)
        return logits


class SeriesEmbedding(nn.Module):
    """Circular convolution of width 3 plus sine positions, behind an optional [CLS] token."""

    positions: Tensor

    def __init__(self, config: ModelConfig, channels: int, length: int, wrap_at_end: bool) -> None:
        super().__init__()
        self.wrap_at_end = wrap_at_end
        self.shift = int(config.token_position)
        self.token_dropout = config.token_dropout
        self.values = nn.Linear(3 * channels, config.width, bias=False)
        nn.init.kaiming_normal_(self.values.weight, mode="fan_in", nonlinearity="leaky_relu")
        self.dropout = Dropout(config.dropout)
        if config.readout == "cls":
            self.token = nn.Parameter(torch.zeros(config.width))
            if config.token_init == "normal":
                nn.init.normal_(self.token, std=TOKEN_SD)
        else:
            self.register_parameter("token", None)
        self.register_buffer("positions", sine_positions(length + 1, config.width), False)
        # TSLib builds this map of time stamps, which these data do not have, and never calls it.
        # It stays, frozen, so that parameter counts are the published ones and checkpoints fit.
        unused = torch.zeros(config.width, TIME_FEATURES)
        self.time_features = nn.Parameter(unused, requires_grad=False)

    def forward(self, series_blc: Tensor, lengths_b: Tensor | None) -> Tensor:
        """(B, L, D), or (B, 1 + L, D) with the token in front."""
        batch, steps, _ = series_blc.shape
        if steps + self.shift > len(self.positions):
            # A test series may be longer than every training series.
            old = self.positions
            longer = sine_positions(steps + self.shift, old.shape[1], old.device)
            self.positions = longer.to(old.dtype)
        x = self.values(self._neighbours(series_blc, lengths_b))
        x = x + self.positions[self.shift : self.shift + steps]
        if self.token is None:
            return self.dropout(x)
        token = self.token + self.positions[0] if self.shift else self.token
        token = token.to(x.dtype).expand(batch, 1, -1)
        if not self.token_dropout:
            return torch.cat([token, self.dropout(x)], dim=1)
        dropped: Tensor = self.dropout(torch.cat([token, x], dim=1))
        return dropped

    def _neighbours(self, series_blc: Tensor, lengths_b: Tensor | None) -> Tensor:
        """(B, L, 3C): each step with the one before and the one after, wrapping around.

        TSLib wraps at the padded length, so the first step of a short series sees a zero. With
        `wrap_at_end` a series wraps at its own end.
        """
        before, after = series_blc.roll(1, dims=1), series_blc.roll(-1, dims=1)
        if self.wrap_at_end and lengths_b is not None:
            rows, last = torch.arange(len(series_blc), device=lengths_b.device), lengths_b - 1
            before[:, 0] = series_blc[rows, last]
            after[rows, last] = series_blc[:, 0]
        return torch.cat([before, series_blc, after], dim=2)


class Encoder(nn.Module):
    """Post-norm layers and a last norm.

    Args:
        config: sizes.
        attention: builds the attention of every layer.
        masked: whether a padding mask will be passed.
        read: number of first positions that are read afterwards, None for all. The last layer
            computes its feed-forward part for these alone.
    """

    def __init__(
        self, config: ModelConfig, attention: AttentionFactory, masked: bool, read: int | None
    ) -> None:
        super().__init__()
        self.read = read
        self.layers = nn.ModuleList(
            EncoderLayer(config, attention, layer, masked) for layer in range(config.layers)
        )
        self.norm = nn.LayerNorm(config.width)

    def forward(self, x_bld: Tensor, key_padding_mask: Tensor | None) -> Tensor:
        """(B, read or L, D)."""
        state = LayerState()
        *first, last = self.layers
        for layer in first:
            x_bld = layer(x_bld, key_padding_mask, state)
        x_bld = last(x_bld, key_padding_mask, state, self.read)
        normed: Tensor = self.norm(x_bld)
        return normed


class EncoderLayer(nn.Module):
    """x = LN(x + Attention(x)); x = LN(x + W2 GELU(W1 x))."""

    def __init__(
        self, config: ModelConfig, attention: AttentionFactory, layer: int, masked: bool
    ) -> None:
        super().__init__()
        self.attention = attention(
            config.width,
            config.heads,
            projection="separate",
            init="linear",
            attention_dropout=config.dropout,
            layer=layer,
            num_layers=config.layers,
            layer_state=True,
            requests=frozenset({"padding"}) if masked else frozenset(),
        )
        self.expand = nn.Linear(config.width, config.feedforward)
        self.contract = nn.Linear(config.feedforward, config.width)
        self.norm1 = nn.LayerNorm(config.width)
        self.norm2 = nn.LayerNorm(config.width)
        self.dropout = Dropout(config.dropout)

    def forward(
        self,
        x_bld: Tensor,
        key_padding_mask: Tensor | None,
        state: LayerState,
        read: int | None = None,
    ) -> Tensor:
        attended = self.attention(x_bld, key_padding_mask=key_padding_mask, state=state)
        x_bld, attended = x_bld[:, :read], attended[:, :read]
        x_bld = self.norm1(x_bld + self.dropout(attended))
        hidden = self.dropout(F.gelu(self.expand(x_bld)))
        out: Tensor = self.norm2(x_bld + self.dropout(self.contract(hidden)))
        return out


class TokenReadout(nn.Module):
    """Classifies from the token alone."""

    def __init__(self, config: ModelConfig, classes: int) -> None:
        super().__init__()
        self.with_gelu = config.head == "gelu"
        self.dropout = Dropout(config.dropout)
        self.classify = nn.Linear(config.width, classes)

    def forward(self, hidden_bld: Tensor, lengths_b: Tensor | None) -> Tensor:
        token = hidden_bld[:, 0]
        if self.with_gelu:
            token = self.dropout(F.gelu(token))
        logits: Tensor = self.classify(token)
        return logits


class FlatReadout(nn.Module):
    """Classifies from all steps side by side, padded ones set to zero."""

    def __init__(self, config: ModelConfig, classes: int, length: int) -> None:
        super().__init__()
        self.length = length
        self.dropout = Dropout(config.dropout)
        self.classify = nn.Linear(length * config.width, classes)

    def forward(self, hidden_bld: Tensor, lengths_b: Tensor | None) -> Tensor:
        steps = hidden_bld.shape[1]
        if steps > self.length:
            raise ValueError(
                f"the flat read-out was built for {self.length} steps and got {steps}; cut the "
                "series, or use model.readout=cls"
            )
        x = self.dropout(F.gelu(hidden_bld))
        if lengths_b is not None:
            inside = torch.arange(steps, device=x.device) < lengths_b[:, None]
            x = x * inside[..., None]
        x = F.pad(x, (0, 0, 0, self.length - steps))
        logits: Tensor = self.classify(x.flatten(1))
        return logits


def sine_positions(length: int, width: int, device: torch.device | None = None) -> Tensor:
    """(length, width) sines on even and cosines on odd places.

    Source: Vaswani et al., Attention is all you need, 2017, section 3.5.
    """
    frequency = torch.exp(
        torch.arange(0, width, 2, device=device).float() * -(math.log(10000.0) / width)
    )
    angle = torch.arange(length, device=device).float()[:, None] * frequency
    return torch.stack([angle.sin(), angle.cos()], dim=2).reshape(length, width)
