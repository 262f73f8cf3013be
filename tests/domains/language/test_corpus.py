"""From files to streams: what is checked, what is cached, what is said."""

from __future__ import annotations

import multiprocessing
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from domains.common.files import cache_dir, sha256
from domains.contract import DataCorrupt
from domains.language import corpus
from domains.language.attack import swap_words
from domains.language.config import DatasetConfig
from domains.language.text import read_lines, split_words
from domains.language.vocabulary import Words

from .test_sources import archive_of, dataset

ARTICLE = " \n = Title {n} = \n \n The cat {n} sat on the <unk> of AAA . \n = = Part = = \n \n"


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """A made-up text in DATA_DIR: 20, 10 and 10 articles of 25 tokens each."""
    folder = tmp_path / "data" / "made-1"
    folder.mkdir(parents=True)
    for split, articles in (("train", 20), ("valid", 10), ("test", 10)):
        text = "".join(ARTICLE.format(n=n) for n in range(articles))
        (folder / f"wiki.{split}.tokens").write_text(text)
    monkeypatch.setenv("DATA_DIR", str(tmp_path / "data"))
    return folder


def made(**options: Any) -> DatasetConfig:
    return DatasetConfig(**{"name": "made", "folder": "made-1", **options})


def words_of(path: Path) -> list[str]:
    return split_words(read_lines(path))


def test_streams_are_the_files_in_numbers(folder):
    found = corpus.load(made(attack="none"))
    vocabulary = Words.learn(lambda: [read_lines(folder / "wiki.train.tokens")])
    for split, file in (("train", "train"), ("val", "valid"), ("test", "test")):
        words = [vocabulary.words[token] for token in found.streams[split]]
        assert words == words_of(folder / f"wiki.{file}.tokens")
        assert isinstance(found.streams[split], np.memmap)
        assert not found.streams[split].flags.writeable
    assert found.counts.tolist() == np.bincount(found.streams["train"]).tolist()
    assert len(found.counts) == vocabulary.size
    assert found.attacked == {}


def test_contaminated_copies_are_those_of_the_attack_and_stand_in_the_notes(folder):
    found = corpus.load(made(attack_seed=3))
    vocabulary = Words.learn(lambda: [read_lines(folder / "wiki.train.tokens")])
    lines = read_lines(folder / "wiki.test.tokens")
    assert list(found.attacked) == [1.5, 2.5, 5.0]
    for (rate, stream), note in zip(found.attacked.items(), found.notes[-3:], strict=True):
        copy = swap_words(lines, rate, "textattack", 3)
        assert stream.tolist() == vocabulary.encode(copy.lines).tokens.tolist()
        changed = int((stream != found.streams["test"]).sum())
        assert 0 < changed <= copy.swaps
        assert note.startswith(
            f"word swap {rate} % (textattack): {copy.swaps} of {copy.words} tokens swapped "
            f"({100 * copy.swaps / copy.words:.2f} %), {changed} changed, SHA-256 "
        )
        [file] = cache_dir().glob(f"language/made-textattack-*/test_attack{rate}.bin")
        assert note.endswith(sha256(file)[:16])


def test_the_first_load_prepares_and_the_next_reads(folder, monkeypatch):
    first = corpus.load(made())

    def never(*args: Any) -> None:
        raise AssertionError("prepared again")

    monkeypatch.setattr(corpus, "prepare_text", never)
    monkeypatch.setattr(corpus, "_attack", never)
    again = corpus.load(made())
    assert again.fingerprint == first.fingerprint
    assert again.notes == first.notes
    assert again.streams["train"].tolist() == first.streams["train"].tolist()


@pytest.mark.parametrize(
    "options",
    [
        {"split": "valid_as_train", "name": "made_valid_as_train"},
        {"attack": "token"},
        {"attack": "none"},
        {"attack_seed": 1},
    ],
)
def test_other_options_give_another_fingerprint(folder, options):
    assert corpus.load(made(**options)).fingerprint != corpus.load(made()).fingerprint


def test_a_changed_file_is_not_taken_from_the_cache(folder):
    first = corpus.load(made())
    path = folder / "wiki.test.tokens"
    path.write_text(path.read_text() + " more \n")
    second = corpus.load(made())
    assert len(second.streams["test"]) == len(first.streams["test"]) + 2
    assert second.fingerprint != first.fingerprint


@pytest.mark.parametrize(
    "file", ["train.bin", "vocabulary.txt", "counts.npy", "test_attack5.0.bin"]
)
def test_a_damaged_cache_is_noticed_and_built_again(folder, file, caplog):
    first = corpus.load(made())
    [path] = cache_dir().glob(f"language/*/{file}")
    path.write_bytes(path.read_bytes()[:-4])
    again = corpus.load(made())
    assert "is damaged" in caplog.text
    assert file in caplog.text
    assert again.fingerprint == first.fingerprint


def load_in_process(barrier: Any, results: Any) -> None:
    barrier.wait()
    results.put(corpus.load(made()).fingerprint)


def test_two_processes_at_once_agree(folder):
    context = multiprocessing.get_context("fork")
    barrier, results = context.Barrier(2), context.Queue()
    processes = [context.Process(target=load_in_process, args=(barrier, results)) for _ in range(2)]
    for process in processes:
        process.start()
    found = {results.get(timeout=30) for _ in processes}
    for process in processes:
        process.join()
    assert found == {corpus.load(made()).fingerprint}


def test_a_wrong_number_of_tokens_names_file_and_numbers(folder):
    right = {split: len(words_of(folder / f"wiki.{split}.tokens")) for split in ("valid", "test")}
    corpus.load(made(tokens=right))
    with pytest.raises(DataCorrupt, match=r"wiki\.test\.tokens: 250 tokens, expected 251\. .*raw"):
        corpus.load(made(tokens={**right, "test": 251}))


def test_a_wrong_number_of_words_names_the_numbers(folder):
    size = Words.learn(lambda: [read_lines(folder / "wiki.train.tokens")]).size
    corpus.load(made(vocabulary=size))
    with pytest.raises(DataCorrupt, match=rf"the vocabulary has {size} entries, expected 267,735"):
        corpus.load(made(vocabulary=267_735))
    # What failed its checks is not in the cache.
    assert len(list(cache_dir().glob("language/made-*/train.bin"))) == 1


def test_words_of_no_training_text_become_unk_and_are_counted(folder):
    path = folder / "wiki.valid.tokens"
    path.write_text(path.read_text() + " never seen \n")
    found = corpus.load(made())
    assert "val: 2 words are not in the vocabulary and became <unk>" in found.notes


def test_a_text_is_real_only_where_it_was_compared(folder):
    paths = {split: folder / f"wiki.{split}.tokens" for split in ("train", "valid", "test")}
    numbers: dict[str, Any] = {
        "tokens": {split: len(words_of(path)) for split, path in paths.items()},
        "vocabulary": Words.learn(lambda: [read_lines(paths["train"])]).size,
    }
    digests = {split: sha256(path) for split, path in paths.items()}
    found = corpus.load(made(**numbers, sha256=digests, attack="none"))
    assert (found.kind, found.notes) == ("real", ())
    del digests["train"]
    found = corpus.load(made(**numbers, sha256=digests, attack="none"))
    assert found.kind == "real"
    assert found.notes[0].startswith("no published checksum of wiki.train.tokens; numbers of")
    found = corpus.load(made(**numbers, sha256={"test": "00"}, attack="none"))
    assert found.kind == "sample"
    assert found.notes == ("wiki.test.tokens differ from the published files (SHA-256)",)
    found = corpus.load(made(vocabulary=numbers["vocabulary"], attack="none"))
    assert found.kind == "sample"
    assert "no published numbers" in found.notes[0]


def test_valid_as_train_holds_the_last_articles_out(folder):
    (folder / "wiki.train.tokens").unlink()
    found = corpus.load(made(name="made_valid_as_train", split="valid_as_train"))
    valid = words_of(folder / "wiki.valid.tokens")
    # 10 articles: the last one selects. It begins with its title; the blank line before stays.
    cut = len(valid) - valid[::-1].index("Title") - 2
    assert (len(found.streams["train"]), len(found.streams["val"])) == (cut, len(valid) - cut)
    vocabulary = Words.learn(lambda: [read_lines(folder / "wiki.valid.tokens")])
    assert len(found.counts) == vocabulary.size - 1  # without `9`, the number of the last article
    assert found.kind == "sample"
    assert found.notes[0].startswith("trained on validation articles")


def test_valid_as_train_needs_articles(folder):
    (folder / "wiki.valid.tokens").write_text(" no title \n" * 100)
    with pytest.raises(DataCorrupt, match=r"wiki\.valid\.tokens: 0 article titles"):
        corpus.load(made(name="made_valid_as_train", split="valid_as_train"))


def test_byte_pairs_are_prepared_and_attacked_like_words(folder):
    pytest.importorskip("tokenizers", reason="the extra 'lm' is not installed")
    config = made(name="made_bpe", tokenizer="bpe", bpe_size=512)
    found = corpus.load(config)
    assert 256 < len(found.counts) <= 512
    assert (found.streams["test"] == 0).sum() == len(read_lines(folder / "wiki.test.tokens"))
    assert len(found.attacked) == 3
    assert corpus.load(config).fingerprint == found.fingerprint


def test_a_fetched_text_is_read_from_the_cache(folder, tmp_path, monkeypatch):
    options = archive_of(folder, tmp_path / "made.zip")
    shutil.rmtree(folder)
    found = corpus.load(made(**options))
    assert found.source == "CACHE_DIR: language/made-1/wiki.{train,valid,test}.tokens"
    assert len(found.streams["train"]) == 500


def test_sample_of_wikitext103(data_dir):
    """Numbers of the published validation and test files; a change of any moves results."""
    config = dataset("wikitext103_valid_as_train")
    if not list(data_dir.glob("**/wikitext-103/wiki.valid.tokens")):
        pytest.skip("wikitext-103 is not in DATA_DIR")
    found = corpus.load(config)
    assert found.kind == "sample"
    assert {split: len(stream) for split, stream in found.streams.items()} == {
        "train": 193_349,
        "val": 24_297,
        "test": 245_569,
    }
    assert len(found.counts) == 17_378
    assert found.notes[1:3] == (
        "val: 2,844 words are not in the vocabulary and became <unk>",
        "test: 24,871 words are not in the vocabulary and became <unk>",
    )
    assert found.notes[3].startswith(
        "word swap 1.5 % (textattack): 3,656 of 245,569 tokens swapped (1.49 %), 3,529 changed, "
        "SHA-256 b3795080e2f348eb"
    )
    assert found.fingerprint.startswith("sha256:e8f49f61c29bc8c3")
