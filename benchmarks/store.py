"""The result store: one folder per run, plain files, written so that a crash loses nothing.

    RESULTS_DIR/<domain>/<dataset>/<attention>/<hash>/seed=<n>/
        config.yaml      what was asked for           provenance.json  how it was made
        status.json      how far it is                result.json      what came out
        metrics.jsonl    curves, append-only          log.txt          output of each attempt
        checkpoints/     for resuming                 claim/           while somebody works on it
        examples.json    pictures, if any, and        examples/        their PNG files

A run has a result exactly if its status is `done`, which is written last. Nothing is deleted:
what is replaced or damaged is set aside under a numbered name. Needs no torch and imports fast.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from benchmarks import claims
from benchmarks.claims import Claim, ClaimLostError, Holder
from benchmarks.files import (
    CorruptFileError,
    StoreError,
    StoreWriteError,
    folder_names,
    folders,
    read_json,
    set_aside,
    sync_directory,
    to_json,
    write_all,
    write_atomic,
    writing,
)
from benchmarks.states import (
    FINAL,
    RUNNABLE,
    SCHEMA,
    STATES,
    TRANSITIONS,
    WORK,
    RunEnded,
    RunKey,
    make_status,
    now,
)

__all__ = [
    "FINAL",
    "RUNNABLE",
    "STATES",
    "Claim",
    "ClaimLostError",
    "CorruptFileError",
    "Run",
    "RunEnded",
    "RunKey",
    "Store",
    "StoreError",
    "StoreWriteError",
]


class Run:
    """One run in the store. Readers need nothing else; writers hold its claim."""

    def __init__(self, key: RunKey, path: Path, observer: claims.Observer) -> None:
        self.key = key
        self.path = path
        self._observer = observer
        self._claim: Claim | None = None
        self._metrics_end_checked = False

    # Reading

    def status(self) -> dict[str, Any]:
        """State, reason, time (ISO 8601, UTC), attempts and details; `planned` if there is no file.

        Raises:
            CorruptFileError: the file is damaged; the run counts as not done.
        """
        path = self.path / "status.json"
        status = read_json(path, SCHEMA)
        if status is None:
            return make_status("planned", None, None, 0, {})
        if status.get("state") not in STATES:
            raise CorruptFileError(path, f"unknown state {status.get('state')!r}")
        if not isinstance(status.get("attempts"), int):
            raise CorruptFileError(path, "no number of attempts")
        return status

    def result(self) -> dict[str, Any] | None:
        """The result, or None unless the run is done.

        Raises:
            CorruptFileError: status or result is damaged or missing; the run counts as not done.
        """
        if self.status()["state"] != "done":
            return None
        path = self.path / "result.json"
        result = read_json(path, SCHEMA)
        if result is None:
            raise CorruptFileError(path, "missing")
        return result

    def config(self) -> dict[str, Any]:
        """The resolved configuration; empty if there is none.

        Raises:
            CorruptFileError: the file is damaged.
        """
        import yaml

        path = self.path / "config.yaml"
        try:
            config = yaml.load(path.read_bytes(), getattr(yaml, "CSafeLoader", yaml.SafeLoader))
        except FileNotFoundError:
            return {}
        except yaml.YAMLError as error:
            raise CorruptFileError(path, str(error)) from error
        if not isinstance(config, dict):
            raise CorruptFileError(path, "not a mapping")
        return config

    def provenance(self) -> dict[str, Any]:
        """How the result was made; empty if nothing is known.

        Raises:
            CorruptFileError: the file is damaged.
        """
        return read_json(self.path / "provenance.json", SCHEMA) or {}

    def metrics(self) -> list[dict[str, Any]]:
        """Records in order; of those repeated after a resume, the last one.

        A line cut off by a kill is left out: the resumed run has written it again.
        """
        try:
            lines = (self.path / "metrics.jsonl").read_bytes().split(b"\n")
        except FileNotFoundError:
            return []
        records: dict[tuple[Any, ...], dict[str, Any]] = {}
        for line in lines:
            with suppress(ValueError):
                record = json.loads(line)
                if isinstance(record, dict):
                    kind = "telemetry" if "telemetry" in record else "values"
                    at = (record.get("phase"), record.get("epoch"), record.get("step"), kind)
                    records[at] = record
        return list(records.values())

    def examples(self) -> list[dict[str, Any]]:
        """Names and files of the pictures that `benchmarks.examples` drew; often none."""
        return list((read_json(self.path / "examples.json", SCHEMA) or {}).get("examples", ()))

    def holder(self) -> Holder | None:
        """Who works on the run at this moment, dead or alive."""
        return claims.holder_of(self.path / "claim")

    def is_dead(self, holder: Holder) -> bool:
        """Whether that holder's process has ended or has long shown no heartbeat.

        Judged by how long this store object has been watching: ask again and again.
        """
        return self._observer.is_dead(self.path / "claim", holder)

    # Writing

    def claim(self, *, presumed_dead: Holder | None = None) -> Claim | None:
        """Claim the run for this process. While the claim is held, each write makes sure of it.

        Args:
            presumed_dead: a holder that the caller has watched long enough.

        Returns:
            A context manager that releases the claim, or None if somebody alive holds it.

        Raises:
            StoreWriteError: the store cannot be written.
        """
        claim = claims.acquire(self.path / "claim", self._observer, presumed_dead=presumed_dead)
        if claim is not None:
            self._claim = claim
        return claim

    def set_status(self, state: str, reason: str | None = None, **details: Any) -> None:
        """Change the run's state. Each change to `running` counts as an attempt.

        Raises:
            ValueError: there is no such state, or it cannot follow the present one.
            StoreError: `done` without a readable result.
            StoreWriteError: the store cannot be written; the state is then unchanged.
            ClaimLostError: the run was taken over.
        """
        before = self.status()
        if state not in TRANSITIONS[before["state"]]:
            allowed = ", ".join(sorted(TRANSITIONS[before["state"]])) or "none: it is final"
            raise ValueError(
                f"{self.key} is '{before['state']}' and cannot become '{state}' "
                f"(allowed: {allowed})"
            )
        if state == "done" and read_json(self.path / "result.json", SCHEMA) is None:
            raise StoreError(f"{self.key} cannot be done: it has no result.json")
        attempts = before["attempts"] + (state == "running")
        details = json.loads(json.dumps(details, default=str))  # never fail for want of a type
        self.write_json("status.json", make_status(state, reason, now(), attempts, details))

    def write_json(self, name: str, value: Mapping[str, Any]) -> None:
        """Replace a JSON file of the run atomically.

        Raises:
            StoreWriteError: the store cannot be written; the old file is then still in place.
            ClaimLostError: the run was taken over.
        """
        self.check_claim()
        write_atomic(self.path / name, to_json(value))

    def write_result(self, result: Mapping[str, Any]) -> None:
        """Store the result; it counts once the status is `done`.

        Raises:
            ValueError: the result is of another run.
            StoreWriteError: the store cannot be written.
            ClaimLostError: the run was taken over.
        """
        for name in ("domain", "dataset", "attention", "hash", "seed"):
            if result.get(name, getattr(self.key, name)) != getattr(self.key, name):
                raise ValueError(f"a result with {name}={result[name]!r} is not one of {self.key}")
        self.write_json("result.json", {"schema": SCHEMA, **result})

    def append_metrics(self, *records: Mapping[str, Any]) -> None:
        """Append records to `metrics.jsonl`, on lines of their own even after a torn one.

        Raises:
            StoreWriteError: the store cannot be written.
            ClaimLostError: the run was taken over.
        """
        self.check_claim()
        path = self.path / "metrics.jsonl"
        lines = [json.dumps(record, ensure_ascii=False).encode() + b"\n" for record in records]
        text = b"".join(lines)
        with writing(path):
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
            try:
                if not self._metrics_end_checked:
                    size = os.fstat(descriptor).st_size
                    if size and os.pread(descriptor, 1, size - 1) != b"\n":
                        text = b"\n" + text
                self._metrics_end_checked = False  # until this write is known to be whole
                write_all(descriptor, text)
                os.fsync(descriptor)
                self._metrics_end_checked = True
            finally:
                os.close(descriptor)

    def reopen(self, reason: str) -> bool:
        """Make a run plannable again from the start, setting aside what it had written.

        Returns:
            False if somebody else works on it.

        Raises:
            StoreWriteError: the store cannot be written.
        """
        claim = self.claim()
        if claim is None:
            return False
        with claim:
            attempts = self.status()["attempts"]
            # The status last: after a crash in between, a `done` without its result is repeated.
            for name in WORK:
                set_aside(self.path / name, "replaced")
            self.write_json("status.json", make_status("planned", reason, now(), attempts, {}))
        return True

    def check(self) -> dict[str, Any]:
        """The status; damaged files are set aside first, which makes the run plannable again.

        For writers. A run that somebody else works on is left alone.

        Raises:
            StoreWriteError: the store cannot be written.
        """
        try:
            self.result()
            return self.status()
        except CorruptFileError:
            claim = self.claim()
        if claim is None:
            return make_status("running", "somebody else works on it", None, 0, {})
        with claim:
            try:
                self.result()  # somebody may have repaired it since
            except CorruptFileError as damage:
                attempts = 0 if damage.path.name == "status.json" else self.status()["attempts"]
                moved = set_aside(damage.path, "corrupt")
                what = f"set aside as {moved.name}" if moved else "missing"
                reason = f"{damage.path.name} was {what}; the run is repeated"
                self.write_json("status.json", make_status("planned", reason, now(), attempts, {}))
            return self.status()

    def check_claim(self) -> None:
        """Raise `ClaimLostError` if this process has held the run and it was taken over."""
        # A claim once lost stays in force: whatever this object still tries to write is refused.
        if self._claim is not None and (self._claim.lost or not self._claim.released):
            self._claim.check()


class Store:
    """All runs below one folder.

    Args:
        root: RESULTS_DIR; need not exist yet.
        stale_seconds: after how long without a heartbeat a claim counts as dead, where its process
            cannot be looked at; the same for all who work on one store.
    """

    def __init__(self, root: Path | str, *, stale_seconds: float = claims.STALE_SECONDS) -> None:
        self.root = Path(root)
        self.stale_seconds = stale_seconds
        self._observer = claims.Observer(stale_seconds)
        self._writable = False

    def run(self, key: RunKey) -> Run:
        """The run of that identity, whether it is in the store or not."""
        return Run(key, key.path(self.root), self._observer)

    def runs(self) -> Iterator[Run]:
        """Every run in the store, in a fixed order."""
        for domain, dataset, attention, identity in folders(str(self.root), 4):
            seeds = []
            for name in folder_names(os.path.join(self.root, domain, dataset, attention, identity)):
                number = name.removeprefix("seed=")
                if name.startswith("seed=") and number.removeprefix("-").isdecimal():
                    seeds.append(int(number))
            for seed in sorted(seeds):
                yield self.run(RunKey(domain, dataset, attention, identity, seed))

    def prepare(self, key: RunKey, config: Mapping[str, Any]) -> Run:
        """Make sure that a run's folder exists, with its configuration and a status.

        A finished run is left as it is; a damaged one is made plannable again.

        Raises:
            StoreWriteError: the store cannot be written.
        """
        self.check_writable()
        run = self.run(key)
        if not run.path.is_dir():
            self._create(run, config)
        elif not (run.path / "config.yaml").exists():
            write_atomic(run.path / "config.yaml", _to_yaml(config))
        run.check()
        return run

    def check_writable(self) -> None:
        """Create the store if need be, and make sure once that it can be written.

        Raises:
            StoreWriteError: with the reason and the way out.
        """
        if self._writable:
            return
        with writing(self.root / "probe"):
            self.root.mkdir(parents=True, exist_ok=True)
        probe = self.root / f".probe-{os.urandom(6).hex()}"
        write_atomic(probe, b"\0" * 65536)
        with writing(probe):
            os.unlink(probe)
        self._writable = True

    def _create(self, run: Run, config: Mapping[str, Any]) -> None:
        prepared = run.path.with_name(f".{run.path.name}-{os.urandom(6).hex()}")
        with writing(run.path):
            try:
                prepared.mkdir(parents=True)
                write_atomic(prepared / "config.yaml", _to_yaml(config))
                status = to_json(make_status("planned", None, now(), 0, {}))
                write_atomic(prepared / "status.json", status)
                # Appears whole or not at all; of several runners that prepare it, one wins.
                os.rename(prepared, run.path)
                sync_directory(run.path.parent)
            except (OSError, StoreError) as error:
                import shutil  # slow to import, and seldom needed

                shutil.rmtree(prepared, ignore_errors=True)
                if isinstance(error, StoreError) or not run.path.is_dir():
                    raise


def _to_yaml(config: Mapping[str, Any]) -> bytes:
    import yaml

    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    text: str = yaml.dump(dict(config), Dumper=dumper, sort_keys=False, allow_unicode=True)
    return text.encode()
