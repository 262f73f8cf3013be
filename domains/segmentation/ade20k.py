"""The archive of ADE20K's scene parsing challenge: fetched, verified, unpacked."""

from __future__ import annotations

import zipfile
from pathlib import Path, PurePosixPath

from domains.contract import DataCorrupt

URL = "http://data.csail.mit.edu/places/ADEchallenge/ADEChallengeData2016.zip"

SHA1 = "219e1696abb36c8ba3a3afe7fb2f4b4606a897c7"
"""Checksum of the archive, the only one that was found published.

Source: rstrudel/segmenter at 20d1bfa, `segm/scripts/prepare_ade20k.py`.
"""


def unpack(archive: Path, name: str, folder: Path) -> None:
    """Take the files of a set out of a zip that holds its folder.

    Args:
        archive: zip with the folder of the set, at any depth.
        name: of that folder.
        folder: where its content goes.

    Raises:
        DataCorrupt: no zip, or no such folder in it.
        OSError: no space.
    """
    try:
        with zipfile.ZipFile(archive) as content:
            count = 0
            for member in content.infolist():
                parts = PurePosixPath(member.filename).parts
                if member.is_dir() or name not in parts[:-1]:
                    continue
                inside = parts[parts.index(name) + 1 :]
                target = folder.joinpath(*(part for part in inside if part != ".."))
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(content.read(member))
                count += 1
    except zipfile.BadZipFile as error:
        raise DataCorrupt(f"{archive.name} is no zip file: {error}") from error
    if not count:
        raise DataCorrupt(f"{archive.name} holds no folder {name}")
