"""Decoders: from tokens of patches to class scores of patches.

Parameters are named as in rstrudel/segmenter at 20d1bfa, `segm/model/decoder.py`.

Shapes: B pictures, N patches, D width, K classes.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attention import AttentionFactory
from domains.common.vit import INIT_SD, BlockSizes, blocks, init_linear, run_blocks
from domains.segmentation.config import ModelConfig

DECODER_NORM_EPS = 1e-5
"""Of the decoder's LayerNorms: PyTorch's default, which Segmenter keeps."""


class LinearDecoder(nn.Module):
    """One linear map from a patch to its classes."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.head = nn.Linear(width, classes)
        self.apply(init_linear)

    def forward(self, patches_bnd: Tensor) -> Tensor:
        """(B, N, D) to (B, N, K)."""
        scores: Tensor = self.head(patches_bnd)
        return scores


class MaskTransformer(nn.Module):
    """Layers over patches and one learned embedding a class; a score is their cosine, normed.

    Args:
        sizes: of the layers.
        attention: builds the attention cores.
        classes: number of classes.

    Source: Strudel et al. 2021, arXiv 2105.05633, section 3.2.
    """

    def __init__(self, sizes: BlockSizes, attention: AttentionFactory, classes: int) -> None:
        super().__init__()
        width = sizes.width
        self.classes = classes
        self.proj_dec = nn.Linear(width, width)
        self.cls_emb = nn.Parameter(torch.zeros(1, classes, width))
        self.blocks = blocks(sizes, attention)
        self.decoder_norm = nn.LayerNorm(width, eps=sizes.norm_eps)
        self.proj_patch = nn.Parameter(width**-0.5 * torch.randn(width, width))
        self.proj_classes = nn.Parameter(width**-0.5 * torch.randn(width, width))
        self.mask_norm = nn.LayerNorm(classes, eps=DECODER_NORM_EPS)
        nn.init.trunc_normal_(self.cls_emb, std=INIT_SD)
        self.apply(init_linear)

    def forward(self, patches_bnd: Tensor) -> Tensor:
        """(B, N, D) to (B, N, K)."""
        embeddings = self.cls_emb.expand(len(patches_bnd), -1, -1)
        x = torch.cat([self.proj_dec(patches_bnd), embeddings], dim=1)
        x = self.decoder_norm(run_blocks(self.blocks, x))
        patches = F.normalize(x[:, : -self.classes] @ self.proj_patch, dim=-1)
        classes = F.normalize(x[:, -self.classes :] @ self.proj_classes, dim=-1)
        scores: Tensor = self.mask_norm(patches @ classes.transpose(1, 2))
        return scores


def decoder(config: ModelConfig, attention: AttentionFactory, classes: int) -> nn.Module:
    """The decoder that the configuration names."""
    if config.decoder == "linear":
        return LinearDecoder(config.width, classes)
    sizes = BlockSizes(
        layers=config.decoder_layers,
        width=config.width,
        heads=config.heads,
        feedforward=config.feedforward,
        dropout=config.decoder_dropout,
        drop_path=config.decoder_drop_path,
        norm_eps=DECODER_NORM_EPS,
    )
    own = attention if config.decoder_attention == "variant" else AttentionFactory("standard")
    return MaskTransformer(sizes, own, classes)
