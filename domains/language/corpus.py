"""From the files of a text to streams of numbers, prepared once and then mapped into memory."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from domains.common.files import sha256
from domains.common.prepared import Prepared, prepared
from domains.contract import DataCorrupt, DataKind
from domains.language.attack import swap_words
from domains.language.config import ATTACK_RATES, DatasetConfig
from domains.language.sources import FILES, TextFiles, changed, fetch, locate
from domains.language.text import article_starts, read_blocks, read_lines, split_words
from domains.language.vocabulary import Blocks, BytePairs, Tokens, Vocabulary, Words

STREAM_TYPE = np.dtype("<i4")
VERSION = 1
"""Raised when the same files give other streams."""

HELD_OUT = 0.1
"""Share of the articles, the last ones, that select under `split=valid_as_train`."""

COUNTS = "counts.npy"

HINT = (
    "Is a file truncated, or of the raw version (wiki.*.raw)? The word-level version is needed "
    "(wiki.*.tokens)."
)


@dataclass(frozen=True)
class Corpus:
    """A text as numbers.

    Attributes:
        streams: `train`, `val` and `test`, (n,) int32, read-only.
        attacked: contaminated copies of `test` by nominal rate in percent.
        counts: (V,) int64, how often each entry of the vocabulary is in `train`.
        kind: see :data:`domains.contract.DataKind`.
        source: where the text comes from, for people.
        fingerprint: SHA-256 of all streams.
        notes: what preparation had to do, and what the attack did.
    """

    streams: Mapping[str, Tokens]
    counts: NDArray[np.int64]
    kind: DataKind
    source: str
    fingerprint: str
    attacked: Mapping[float, Tokens] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def load(config: DatasetConfig) -> Corpus:
    """Locate or fetch a text, prepare it or take it from the cache.

    Raises:
        DataUnavailable, DataCorrupt: see :func:`domains.language.sources.fetch` and
            :func:`prepare_text`.
    """
    files = locate(config) or fetch(config)
    text = _prepared_text(config, files)
    kind, doubts = _judge(config, files)
    notes = [*doubts, *text.facts["notes"]]
    contents = dict(text.digests)
    attacked: dict[float, Tokens] = {}
    if config.attack != "none":
        copies = _prepared_attack(config, files, text)
        attacked = {rate: _map(copies, _copy_name(rate)) for rate in ATTACK_RATES}
        notes += _describe_attack(config, copies)
        contents |= copies.digests
    return Corpus(
        streams={split: _map(text, split) for split in ("train", "val", "test")},
        counts=np.load(text.folder / COUNTS, allow_pickle=False),
        kind=kind,
        source=files.source,
        fingerprint=f"sha256:{_digest(sorted(contents.items()))}",
        attacked=attacked,
        notes=tuple(notes),
    )


def _prepared_text(config: DatasetConfig, files: TextFiles) -> Prepared:
    """Vocabulary and streams. A folder's name says what was read and which checks it passed."""
    digests = {key: sha256(path) for key, path in files.paths.items()}
    checks = [sorted(config.tokens.items()), config.vocabulary]
    tokenizer = [config.tokenizer, config.bpe_size if config.tokenizer == "bpe" else None]
    content = _digest([VERSION, digests, config.split, tokenizer, checks])
    name = f"language/{config.name}-{content[:12]}"
    return prepared(name, lambda folder: prepare_text(config, files, folder))


def prepare_text(config: DatasetConfig, files: TextFiles, folder: Path) -> dict[str, list[str]]:
    """Build the vocabulary and write it, the three streams and the counts into a folder.

    Raises:
        DataCorrupt: a file is damaged or has not the stated number of tokens, or the vocabulary
            has not the stated size.
    """
    _refuse_other_counts(config, files)
    texts = _splits(config, files)
    vocabulary: Vocabulary
    if config.tokenizer == "bpe":
        vocabulary = BytePairs.learn(texts["train"], config.bpe_size)
    else:
        vocabulary = Words.learn(texts["train"])
        if config.vocabulary not in (None, vocabulary.size):
            raise DataCorrupt(
                f"{files.source}: the vocabulary has {vocabulary.size:,} entries, expected "
                f"{config.vocabulary:,}. {HINT}"
            )
    vocabulary.save(folder)
    counts = np.zeros(vocabulary.size, np.int64)
    notes = []
    for split, blocks in texts.items():
        unknown = 0
        with (folder / f"{split}.bin").open("wb") as out:
            for lines in blocks():
                encoded = vocabulary.encode(lines)
                encoded.tokens.astype(STREAM_TYPE).tofile(out)
                unknown += encoded.unknown
                if split == "train":
                    counts += np.bincount(encoded.tokens, minlength=vocabulary.size)
        if unknown:
            notes.append(f"{split}: {unknown:,} words are not in the vocabulary and became <unk>")
    np.save(folder / COUNTS, counts)
    return {"notes": notes}


def _refuse_other_counts(config: DatasetConfig, files: TextFiles) -> None:
    """Refuse files that have not the stated number of tokens, before they cost more time."""
    for key, path in files.paths.items():
        if key in config.tokens:
            found = sum(len(split_words(lines)) for lines in read_blocks(path))
            if found != config.tokens[key]:
                raise DataCorrupt(
                    f"{path}: {found:,} tokens, expected {config.tokens[key]:,}. {HINT}"
                )


def _splits(config: DatasetConfig, files: TextFiles) -> dict[str, Blocks]:
    """Text of `train`, `val` and `test`.

    Raises:
        DataCorrupt: `split=valid_as_train` finds fewer than two articles.
    """
    test = partial(read_blocks, files.paths["test"])
    if config.split == "official":
        train, val = (partial(read_blocks, files.paths[key]) for key in ("train", "valid"))
        return {"train": train, "val": val, "test": test}
    lines = read_lines(files.paths["valid"])
    starts = article_starts(lines)
    if len(starts) < 2:
        raise DataCorrupt(
            f"{files.paths['valid']}: {len(starts)} article titles (' = Title = ' between blank "
            "lines), at least 2 are needed to hold one out"
        )
    cut = starts[-max(1, round(HELD_OUT * len(starts)))]
    return {"train": lambda: [lines[:cut]], "val": lambda: [lines[cut:]], "test": test}


def _judge(config: DatasetConfig, files: TextFiles) -> tuple[DataKind, list[str]]:
    """Whether files are the published text, and what to tell if that is not certain."""
    if config.split == "valid_as_train":
        return "sample", ["trained on validation articles, selected on the last tenth of them"]
    if different := changed(config, files):
        return "sample", [f"{' and '.join(different)} differ from the published files (SHA-256)"]
    if config.vocabulary is None or not set(files.paths) <= set(config.tokens):
        return "sample", ["no published numbers of tokens and words to compare the files with"]
    unpinned = [FILES[key] for key in files.paths if key not in config.sha256]
    agree = "no published checksum of {}; numbers of tokens and words agree with the published ones"
    return "real", [agree.format(" and ".join(unpinned))] if unpinned else []


def _prepared_attack(config: DatasetConfig, files: TextFiles, text: Prepared) -> Prepared:
    """Contaminated copies of the test text under the text's vocabulary; one set for all runs."""
    content = _digest([VERSION, sorted(text.digests.items()), config.attack, config.attack_seed])
    name = f"language/{config.name}-{config.attack}-{content[:12]}"
    return prepared(name, lambda folder: _attack(config, files, text, folder))


def _attack(
    config: DatasetConfig, files: TextFiles, text: Prepared, folder: Path
) -> dict[str, dict[str, int]]:
    vocabulary: Vocabulary = (BytePairs if config.tokenizer == "bpe" else Words).load(text.folder)
    clean = _map(text, "test")
    lines = read_lines(files.paths["test"])
    facts = {}
    for rate in ATTACK_RATES:
        copy = swap_words(lines, rate, config.attack, config.attack_seed)
        tokens = vocabulary.encode(copy.lines).tokens.astype(STREAM_TYPE)
        tokens.tofile(folder / f"{_copy_name(rate)}.bin")
        facts[_copy_name(rate)] = {"swaps": copy.swaps, "words": copy.words}
        if len(tokens) == len(clean):
            facts[_copy_name(rate)]["changed"] = int(np.count_nonzero(tokens != clean))
    return facts


def _describe_attack(config: DatasetConfig, copies: Prepared) -> list[str]:
    notes = []
    for rate in ATTACK_RATES:
        facts = copies.facts[_copy_name(rate)]
        swaps, words = facts["swaps"], facts["words"]
        digest = copies.digests[f"{_copy_name(rate)}.bin"]
        changed = f", {facts['changed']:,} changed" if "changed" in facts else ""
        notes.append(
            f"word swap {rate} % ({config.attack}): {swaps:,} of {words:,} tokens swapped "
            f"({100 * swaps / words:.2f} %){changed}, SHA-256 {digest[:16]}"
        )
    return notes


def _copy_name(rate: float) -> str:
    return f"test_attack{rate}"


def _map(folder: Prepared, name: str) -> Tokens:
    """A stream, mapped into memory."""
    return np.memmap(folder.folder / f"{name}.bin", STREAM_TYPE, mode="r")


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
