"""Made-up series with the true shapes of a set, for smoke runs and tests."""

from __future__ import annotations

import numpy as np

from domains.common.seeds import derive
from domains.timeseries.config import DatasetConfig
from domains.timeseries.sources import LoadedSet
from domains.timeseries.ts_format import TsFile

DEFAULTS = {"channels": 3, "classes": 4, "length": 50}
"""For sets whose sizes only the files could tell."""

LONG = 512
"""From here on a class gets half as many series, to stay within seconds."""


def tiny_set(config: DatasetConfig) -> LoadedSet:
    """A learnable set: every class has its own mean and frequency, every series its own phase."""
    channels = config.channels or DEFAULTS["channels"]
    classes = config.classes or DEFAULTS["classes"]
    length = config.length or DEFAULTS["length"]
    per_class = 2 if length > LONG else 4

    def file(split: str, longest: int) -> TsFile:
        shortest = config.shortest or longest
        return _file(config.name, split, channels, classes, (shortest, longest), per_class)

    train, test = file("TRAIN", config.train_length or length), file("TEST", length)
    return LoadedSet(train, test, "synthetic", "made-up sinusoids with the set's shapes", ())


def _file(
    name: str,
    split: str,
    channels: int,
    classes: int,
    between: tuple[int, int],
    per_class: int,
) -> TsFile:
    shortest, length = between
    rng = np.random.default_rng(derive(0, name, split))
    labels = np.tile(np.arange(classes), per_class)
    steps = rng.integers(shortest, length + 1, len(labels))
    steps[0] = length
    lengths = np.repeat(steps[:, None], channels, axis=1)
    phase = rng.uniform(0, 2 * np.pi, (len(labels), channels, 1))
    time = np.arange(length) / length
    waves = np.sin(2 * np.pi * (1 + labels[:, None, None]) * time + phase)
    # Means of the classes are the same in both splits: drawn from a seed without the split.
    means = np.random.default_rng(derive(0, name)).normal(0, 1, (classes, channels))
    dense = waves + means[labels][..., None] + rng.normal(0, 0.1, waves.shape)
    inside = np.arange(length) < lengths[..., None]
    return TsFile(tuple(map(str, range(1, classes + 1))), labels, lengths, dense[inside])
