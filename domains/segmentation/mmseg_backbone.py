"""A backbone for mmsegmentation's configuration files: `type='AttentionViT'`.

    custom_imports = dict(imports=['domains.segmentation.mmseg_backbone'])
    model = dict(backbone=dict(type='AttentionViT', attention='quest', img_size=512), ...)

Needs the extra `mmseg`. Imported by nothing here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mmseg.registry import MODELS
from torch import Tensor

from attention import AttentionFactory
from domains.common.vit import BlockSizes, VisionTransformer
from domains.segmentation.checkpoint import load_encoder


@MODELS.register_module()
class AttentionViT(VisionTransformer):
    """The encoder of :class:`domains.segmentation.model.Segmenter`; the defaults are ViT-Ti/16.

    Args:
        attention: name of the variant.
        attention_options: its options.
        img_size: side of the crops in pixels.
        patch_size: side of a patch.
        embed_dims: width.
        num_layers: number of layers.
        num_heads: attention heads.
        mlp_ratio: hidden width of the feed-forward maps over the width.
        drop_rate: dropout.
        drop_path_rate: stochastic depth of the last layer.
        with_cls_token: whether there is a class token; it is not part of the output.
        interpolate_mode: how positions are resized, `bilinear` or `bicubic`.
        init: file with weights, see :func:`domains.segmentation.checkpoint.load_encoder`.
        init_allow: beginnings of the names of parameters that may differ in it.
    """

    def __init__(
        self,
        *,
        attention: str = "standard",
        attention_options: Mapping[str, Any] | None = None,
        img_size: int = 512,
        patch_size: int = 16,
        embed_dims: int = 192,
        num_layers: int = 12,
        num_heads: int = 3,
        mlp_ratio: int = 4,
        drop_rate: float = 0.0,
        drop_path_rate: float = 0.1,
        with_cls_token: bool = True,
        interpolate_mode: str = "bilinear",
        init: str = "",
        init_allow: Sequence[str] = (),
    ) -> None:
        sizes = BlockSizes(
            layers=num_layers,
            width=embed_dims,
            heads=num_heads,
            feedforward=mlp_ratio * embed_dims,
            dropout=drop_rate,
            drop_path=drop_path_rate,
        )
        super().__init__(
            sizes,
            AttentionFactory(attention, attention_options),
            image_size=(img_size, img_size),
            patch=patch_size,
            class_token=with_cls_token,
            resize=interpolate_mode,
        )
        if init:
            load_encoder(self, init, allow=init_allow)

    def forward(self, images: Tensor) -> tuple[Tensor]:  # type: ignore[override]
        """One map of features (B, D, rows, columns), as mmsegmentation's heads want it.

        Args:
            images: (B, 3, H, W) with sides that are multiples of the patch.
        """
        tokens = self.forward_features(images)[:, self.num_extra :]
        rows = images.shape[2] // self.patch
        return (tokens.transpose(1, 2).unflatten(2, (rows, -1)),)
