"""Forward and backward of Segmenter, its loss and its training crops (`make speed`).

Baselines repeat, operation for operation, what rstrudel/segmenter at 20d1bfa does: one product for
queries, keys and values, stored scores under a softmax with dropout, scores of all pixels before
the loss; and, for the crops, a resize of the whole picture before most of it is cut away.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional as F

from attention import AttentionFactory
from domains.segmentation.batch import IGNORED
from domains.segmentation.config import ModelConfig, SegmentationRecipe
from domains.segmentation.images import read_image, read_indices
from domains.segmentation.loss import pixel_cross_entropy
from domains.segmentation.model import Segmenter, upsample
from domains.segmentation.transforms import Draws, crop_box, resized_image, training_crop
from domains.speed_cases import SpeedCase, TimeLimit

GROUP = "segmentation: forward and backward"
LOADER = "segmentation: training crops"
CLASSES, CROP, CROPS, FILES = 150, 512, 8, 64
QUICK_CROP = 64
TINY = ModelConfig()
QUICK = replace(TINY, layers=2)


def cases(*, device: str, quick: bool) -> Iterator[SpeedCase | TimeLimit]:
    """QUEST against standard attention, and ours against the reference implementation."""
    model, crop = (QUICK, QUICK_CROP) if quick else (TINY, CROP)
    size = f"{'2 layers of ' if quick else ''}Segmenter-Ti, 1 x 3 x {crop} x {crop}"
    tokens = (crop // model.patch) ** 2 + 1

    def ours(variant: str) -> Callable[[], object]:
        factory = AttentionFactory(variant)
        net = Segmenter(model, factory, classes=CLASSES, crop=crop).to(device)
        images, masks = _batch(crop, device)
        return _step(net, lambda: pixel_cross_entropy(net(images), masks, model.patch))

    def plain() -> Callable[[], object]:
        net = _PlainSegmenter(model, crop).to(device)
        images, masks = _batch(crop, device)
        return _step(net, lambda: F.cross_entropy(net(images), masks, ignore_index=IGNORED))

    yield SpeedCase(
        group=GROUP,
        name=f"quest, {size}",
        baseline=lambda: ours("standard"),
        candidate=lambda: ours("quest"),
        against="standard",
        time_target=1.03,
        tokens=tokens,
    )
    yield SpeedCase(
        group=GROUP,
        name=f"standard, {size}",
        baseline=plain,
        candidate=lambda: ours("standard"),
        against="Segmenter's operations",
        tokens=tokens,
    )
    yield SpeedCase(
        group=GROUP,
        name=f"upsampling and loss alone, {CLASSES} classes, {crop} x {crop}",
        baseline=lambda: _loss_step(model.patch, crop, device, fused=False),
        candidate=lambda: _loss_step(model.patch, crop, device, fused=True),
        against="scores of all pixels, then the loss",
        time_target=1.0,
    )
    yield SpeedCase(
        group=LOADER,
        name=f"{CROPS} crops of {crop} x {crop} in one process, reading not included",
        baseline=lambda: _crops(crop, _cut_afterwards),
        candidate=lambda: _crops(crop, training_crop),
        against="the whole picture resized, then cut",
        memory=False,
    )
    yield TimeLimit(
        group=LOADER,
        name=f"{FILES} pairs of files read and cropped in one process",
        prepare=lambda: _loading(crop),
    )


def _batch(crop: int, device: str) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(1, 3, crop, crop, generator=generator)
    masks = torch.randint(CLASSES, (1, crop, crop), generator=generator)
    return images.to(device), masks.to(device)


def _step(net: nn.Module, loss: Callable[[], Tensor]) -> Callable[[], object]:
    def step() -> None:
        net.zero_grad()
        torch.autograd.backward(loss())

    return step


def _loss_step(patch: int, crop: int, device: str, *, fused: bool) -> Callable[[], object]:
    side = crop // patch
    scores = torch.randn(1, CLASSES, side, side, generator=torch.Generator().manual_seed(0))
    scores = scores.to(device).requires_grad_()
    _, masks = _batch(crop, device)

    def step() -> None:
        scores.grad = None
        if fused:
            loss = pixel_cross_entropy(scores, masks, patch)
        else:
            full = upsample(scores, patch, (crop, crop))
            loss = F.cross_entropy(full, masks, ignore_index=IGNORED)
        torch.autograd.backward(loss)

    return step


def _crops(crop: int, make: Callable[..., object]) -> Callable[[], object]:
    """Crops of a picture of ADE20K's usual size, with other random numbers each."""
    recipe, generator = _recipe(crop), np.random.default_rng(0)
    image = generator.integers(0, 256, (512, 683, 3), dtype=np.uint8)
    labels = generator.integers(0, CLASSES, (512, 683), dtype=np.uint8)
    draws = [Draws.of(generator, recipe) for _ in range(CROPS)]
    return lambda: [make(image, labels, recipe, crop, drawn) for drawn in draws]


def _recipe(crop: int) -> SegmentationRecipe:
    return SegmentationRecipe(name="speed", max_epochs=1, batch_size=CROPS, crop=crop)


def _loading(crop: int) -> Callable[[], object]:
    """What a process of the loader does, with a smooth picture of ADE20K's usual size."""
    recipe, generator = _recipe(crop), np.random.default_rng(0)
    coarse = Image.fromarray(generator.integers(0, 256, (16, 22, 3), dtype=np.uint8))
    regions = Image.fromarray(generator.integers(0, CLASSES, (16, 22), dtype=np.uint8))
    draws = [Draws.of(generator, recipe) for _ in range(FILES)]

    def load() -> None:
        with TemporaryDirectory() as folder:
            picture, mask = Path(folder, "picture.jpg"), Path(folder, "mask.png")
            coarse.resize((683, 512), Image.Resampling.BICUBIC).save(picture)
            regions.resize((683, 512), Image.Resampling.NEAREST).save(mask)
            for drawn in draws:
                labels = read_indices(mask)
                training_crop(read_image(picture), labels, recipe, crop, drawn)

    return load


def _cut_afterwards(
    image: np.ndarray, labels: np.ndarray, recipe: SegmentationRecipe, crop: int, draws: Draws
) -> object:
    """A crop of a picture that is resized whole, by the same code: `factor` is used up before."""
    factor = recipe.short_side * draws.factor / min(image.shape[:2])
    size = int(image.shape[0] * factor + 0.5), int(image.shape[1] * factor + 0.5)
    whole = resized_image(image, size)
    rows, columns = (
        np.arange(new) * old // new for new, old in zip(size, labels.shape, strict=True)
    )
    resized = labels[rows[:, None], columns]
    top, left, height, width = crop_box(resized, crop, draws, recipe.max_class_share)
    part = slice(top, top + height), slice(left, left + width)
    frame = replace(recipe, short_side=min(height, width), long_side=max(height, width))
    return training_crop(whole[part], resized[part], frame, crop, replace(draws, factor=1.0))


class _PlainSegmenter(nn.Module):
    def __init__(self, config: ModelConfig, crop: int) -> None:
        super().__init__()
        width, count = config.width, (crop // config.patch) ** 2
        self.patch, self.side = config.patch, crop // config.patch
        self.embed = nn.Conv2d(3, width, config.patch, config.patch)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, width))
        self.positions = nn.Parameter(torch.zeros(1, count + 1, width))
        self.encoder = nn.Sequential(*(_PlainBlock(config, 0.0) for _ in range(config.layers)))
        self.norm = nn.LayerNorm(width)
        self.proj_dec = nn.Linear(width, width)
        self.cls_emb = nn.Parameter(torch.randn(1, CLASSES, width))
        layers = (_PlainBlock(config, config.decoder_dropout) for _ in range(config.decoder_layers))
        self.decoder = nn.Sequential(*layers)
        self.decoder_norm = nn.LayerNorm(width)
        self.proj_patch = nn.Parameter(width**-0.5 * torch.randn(width, width))
        self.proj_classes = nn.Parameter(width**-0.5 * torch.randn(width, width))
        self.mask_norm = nn.LayerNorm(CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        """Scores of pixels (B, K, H, W)."""
        x = self.embed(images).flatten(2).transpose(1, 2)
        x = torch.cat((self.cls_token.expand(len(x), -1, -1), x), dim=1) + self.positions
        x = self.proj_dec(self.norm(self.encoder(x))[:, 1:])
        x = torch.cat((x, self.cls_emb.expand(len(x), -1, -1)), dim=1)
        x = self.decoder_norm(self.decoder(x))
        patches = x[:, :-CLASSES] @ self.proj_patch
        classes = x[:, -CLASSES:] @ self.proj_classes
        patches = patches / patches.norm(dim=-1, keepdim=True)
        classes = classes / classes.norm(dim=-1, keepdim=True)
        scores = self.mask_norm(patches @ classes.transpose(1, 2))
        scores = scores.transpose(1, 2).unflatten(2, (self.side, self.side))
        return F.interpolate(scores, size=images.shape[2:], mode="bilinear")


class _PlainBlock(nn.Module):
    def __init__(self, config: ModelConfig, dropout: float) -> None:
        super().__init__()
        width = config.width
        self.heads, self.scale = config.heads, (width // config.heads) ** -0.5
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, config.feedforward),
            nn.GELU(),
            nn.Dropout(dropout),
            nn.Linear(config.feedforward, width),
            nn.Dropout(dropout),
        )
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """(B, N, D) to (B, N, D)."""
        x = x + self._attend(self.norm1(x))
        out: Tensor = x + self.mlp(self.norm2(x))
        return out

    def _attend(self, x: Tensor) -> Tensor:
        split = self.qkv(x).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        q, k, v = split[0], split[1], split[2]
        weights = self.dropout((q @ k.transpose(-2, -1) * self.scale).softmax(dim=-1))
        out: Tensor = self.dropout(self.proj((weights @ v).transpose(1, 2).flatten(2)))
        return out
