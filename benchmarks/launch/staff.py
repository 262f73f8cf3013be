"""The workers of a local pool: who is free, who can be taken on, who has to go for that."""

from __future__ import annotations

from collections.abc import Collection

from benchmarks.launch.process import WorkerProcess
from benchmarks.launch.slots import Share, Slots
from benchmarks.launch.worker import Settings


class Staff:
    """Worker processes on the places of a machine.

    A worker keeps its share of the machine, because a process cannot change the GPUs that it sees.
    One without work makes room for runs with other needs.

    Args:
        slots: the machine.
        settings: what every worker is told.

    Attributes:
        workers: all that have been started and not ended.
    """

    def __init__(self, slots: Slots, settings: Settings) -> None:
        self.workers: list[WorkerProcess] = []
        self._slots = slots
        self._settings = settings

    def idle(self, devices: int) -> WorkerProcess | None:
        """A worker without work for runs with this need."""
        found = (worker for worker in self.workers if _is_idle(worker))
        return next((worker for worker in found if worker.share.devices == devices), None)

    def starting(self, devices: int) -> int:
        """How many workers for runs with this need are not ready yet."""
        return sum(not worker.ready and worker.share.devices == devices for worker in self.workers)

    def is_full(self) -> bool:
        """Whether no run can begin."""
        return self._slots.taken(self._busy()) >= self._slots.count

    def has_room(self, devices: int, waiting: Collection[int]) -> bool:
        """Whether one more run can begin, and those that wait still have their turn.

        Args:
            devices: that it needs.
            waiting: devices that runs need for which there is no room yet.
        """
        busy = self._busy()
        return (
            self._slots.leaves_room(devices, busy, waiting)
            and self._slots.place(devices, busy) is not None
        )

    def hire(self, devices: int) -> None:
        """Start a worker where there is room for it, in the place of idle ones if need be."""
        while (share := self._slots.place(devices, self._shares())) is None:
            self.dismiss(next(worker for worker in self.workers if _is_idle(worker)))
        self.workers.append(WorkerProcess(self._settings, share))

    def dismiss(self, worker: WorkerProcess) -> None:
        """End a worker at once."""
        self.workers.remove(worker)
        worker.close(grace=0.0)

    def _shares(self) -> list[Share]:
        return [worker.share for worker in self.workers]

    def _busy(self) -> list[Share]:
        """Shares of those who work, or will as soon as they have started."""
        return [worker.share for worker in self.workers if not _is_idle(worker)]


def _is_idle(worker: WorkerProcess) -> bool:
    return worker.ready and worker.offer is None
