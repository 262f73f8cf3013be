"""Files that are either whole or not there, and errors that tell the way out."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

_WRITERS = 16
_FULL = {errno.ENOSPC, errno.EDQUOT}
_FORBIDDEN = {errno.EACCES, errno.EPERM, errno.EROFS}
_NO_DIRECTORY_SYNC = {errno.EINVAL, errno.ENOTSUP, errno.EBADF, errno.EACCES}


Item = TypeVar("Item")
Found = TypeVar("Found")


class StoreError(RuntimeError):
    """The result store cannot do what was asked; the message names the file and the way out."""


class StoreWriteError(StoreError):
    """The store cannot be written: no space left, no permission, read-only or vanished."""


class CorruptFileError(StoreError):
    """A file of a run is damaged.

    Attributes:
        path: the damaged file.
    """

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(
            f"{path} is damaged ({why}). The run counts as not done; running it again sets the "
            f"file aside as {path.name}.corrupt-N and repeats it."
        )
        self.path = path


def for_each(work: Callable[[Item], Found], items: Sequence[Item]) -> list[Found]:
    """Call for all items at a time: most of the time is spent waiting for the disk.

    Returns:
        The results in order.
    """
    if len(items) <= 1:
        return [work(item) for item in items]
    with ThreadPoolExecutor(_WRITERS) as threads:
        return list(threads.map(work, items))


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn every `OSError` of the block, which writes `path`, into a `StoreWriteError`.

    Raises:
        StoreWriteError: with the path, the space left and what to do.
    """
    try:
        yield
    except OSError as error:
        raise StoreWriteError(_advice(path, error)) from error


def full_disk(error: BaseException, path: Path) -> StoreWriteError | None:
    """What to raise instead of `error` if a full disk is behind it; None if not.

    Args:
        error: anything raised while files were written, whoever wrapped it.
        path: what was being written.
    """
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, OSError) and seen.errno in _FULL:
            return StoreWriteError(_advice(path, seen))
        seen = seen.__cause__ or seen.__context__
    return None


def _advice(path: Path, error: OSError) -> str:
    again = (
        "Then give the same command again: finished runs are kept, the others continue from "
        "their last checkpoint."
    )
    if error.errno in _FULL:
        return (
            f"cannot write {path}: {error.strerror} ({_space(path)}). Free some space, or name "
            f"another place with RESULTS_DIR. {again}"
        )
    if error.errno in _FORBIDDEN:
        return (
            f"cannot write {path}: {error.strerror}. Give yourself the right to write there, or "
            f"name another place with RESULTS_DIR. {again}"
        )
    return f"cannot write {path}: {error.strerror or error} ({_space(path)}). {again}"


def _space(path: Path) -> str:
    for folder in path.parents:
        with suppress(OSError):
            disk = os.statvfs(folder)
            free, total = disk.f_bavail * disk.f_frsize, disk.f_blocks * disk.f_frsize
            return f"{free / 1e6:.1f} MB free of {total / 1e6:.1f} MB"
    return "space left unknown"


def write_all(descriptor: int, data: bytes) -> None:
    """Write all bytes; `os.write` may stop early, for example just before the disk is full."""
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def write_atomic(path: Path, data: bytes) -> None:
    """Replace `path` by `data`: a reader, or a restart after a crash, sees the old or the new.

    Raises:
        StoreWriteError: the old content is then still in place.
    """
    temporary = path.with_name(f".{path.name}.{os.urandom(6).hex()}")
    with writing(path):
        try:
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
            try:
                write_all(descriptor, data)
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            os.replace(temporary, path)
        except BaseException:
            with suppress(OSError):
                os.unlink(temporary)
            raise
        sync_directory(path.parent)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Let somebody else write a file, then put it in the place of `path`, whole or not at all.

    Yields:
        The file to write, in the same folder.

    Raises:
        StoreWriteError: the old content is then still in place.
    """
    temporary = path.with_name(f".{path.name}.{os.urandom(6).hex()}")
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            yield temporary
            with open(temporary, "rb") as file:
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except BaseException:
            with suppress(OSError):
                os.unlink(temporary)
            raise
        sync_directory(path.parent)


def sync_directory(folder: Path) -> None:
    """Make a rename inside `folder` survive a power failure, where the file system offers that."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _NO_DIRECTORY_SYNC:
            raise
    finally:
        os.close(descriptor)


def to_json(value: Any) -> bytes:
    """Readable JSON; non-finite numbers are written as Python's `json` does (`NaN`)."""
    return json.dumps(value, indent=1, ensure_ascii=False).encode() + b"\n"


def read_json(path: Path, newest_schema: int) -> dict[str, Any] | None:
    """The object in a JSON file, or None if there is no such file.

    Raises:
        CorruptFileError: the file does not hold a JSON object.
        StoreError: the file's `schema` is newer than this program knows.
    """
    try:
        value = json.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except ValueError as error:  # covers undecodable bytes as well as malformed JSON
        raise CorruptFileError(path, str(error)) from error
    if not isinstance(value, dict):
        raise CorruptFileError(path, f"holds a {type(value).__name__} instead of an object")
    schema = value.get("schema", newest_schema)
    if not isinstance(schema, int):
        raise CorruptFileError(path, f"schema {schema!r} is no number")
    if schema > newest_schema:
        raise StoreError(
            f"{path} was written by a newer version of this suite (schema {schema}, this one knows "
            f"{newest_schema}). Update the suite, or name another store with RESULTS_DIR."
        )
    return value


def set_aside(path: Path, label: str) -> Path | None:
    """Rename `path` to the first free `path.label-N`; None if it is not there.

    Raises:
        StoreWriteError: the folder cannot be written.
    """
    number = 1
    while (target := path.with_name(f"{path.name}.{label}-{number}")).exists():
        number += 1
    with writing(path):
        try:
            os.rename(path, target)
        except FileNotFoundError:
            return None
    return target


def folder_names(folder: str) -> list[str]:
    """Names of the visible folders in a folder, sorted; none if it is not there."""
    try:
        with os.scandir(folder) as entries:
            return sorted(e.name for e in entries if not e.name.startswith(".") and e.is_dir())
    except (FileNotFoundError, NotADirectoryError):
        return []


def folders(root: str, depth: int) -> Iterator[tuple[str, ...]]:
    """Every visible folder `depth` levels below `root`, as its names, in order."""
    for name in folder_names(root):
        if depth == 1:
            yield (name,)
        else:
            for rest in folders(os.path.join(root, name), depth - 1):
                yield (name, *rest)
