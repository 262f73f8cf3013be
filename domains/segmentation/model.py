"""Segmenter: a Vision Transformer and a decoder of its patches.

Source: Strudel et al. 2021, arXiv 2105.05633; rstrudel/segmenter at 20d1bfa, `segm/model/`, whose
names the parameters have.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from attention import AttentionFactory
from domains.common.vit import BlockSizes, VisionTransformer
from domains.contract import refuse_unless
from domains.segmentation.config import ModelConfig
from domains.segmentation.decoders import decoder


class Segmenter(nn.Module):
    """Class scores of patches; :func:`upsample` makes them scores of pixels.

    Args:
        config: sizes and form.
        attention: builds the attention cores.
        classes: number of classes.
        crop: side in pixels of the pictures that the positions are learned for.

    Raises:
        ValueError: the crop is not a whole number of patches.
    """

    def __init__(
        self, config: ModelConfig, attention: AttentionFactory, *, classes: int, crop: int
    ) -> None:
        super().__init__()
        patches = f"a multiple of model.patch={config.patch}"
        refuse_unless(crop % config.patch == 0, "recipe.crop", crop, patches)
        self.patch = config.patch
        self.encoder = VisionTransformer(
            BlockSizes(
                layers=config.layers,
                width=config.width,
                heads=config.heads,
                feedforward=config.feedforward,
                dropout=config.dropout,
                drop_path=config.drop_path,
                layer_scale=config.layer_scale,
                norm_eps=config.norm_eps,
            ),
            attention,
            image_size=(crop, crop),
            patch=config.patch,
            class_token=config.class_token,
            resize=config.position_resize,
        )
        self.decoder = decoder(config, attention, classes)

    def forward(self, images: Tensor) -> Tensor:
        """Scores of patches.

        Args:
            images: (B, 3, H, W); sides that are no multiples of the patch are filled up with
                zeros, right and bottom.

        Returns:
            (B, K, rows, columns), one score a patch and class.
        """
        height, width = images.shape[2:]
        images = F.pad(images, (0, -width % self.patch, 0, -height % self.patch))
        rows = images.shape[2] // self.patch
        tokens = self.encoder(images)[:, self.encoder.num_extra :]
        scores: Tensor = self.decoder(tokens)
        return scores.transpose(1, 2).unflatten(2, (rows, -1))


def upsample(scores: Tensor, patch: int, size: tuple[int, int]) -> Tensor:
    """Scores of pixels (B, K, H, W), bilinear between the centres of the patches.

    Args:
        scores: (B, K, rows, columns), one score a patch.
        patch: side of a patch in pixels.
        size: (H, W) of the pictures before they were filled up to whole patches.
    """
    full = F.interpolate(scores, scale_factor=patch, mode="bilinear", align_corners=False)
    return full[:, :, : size[0], : size[1]]
