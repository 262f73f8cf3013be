"""How many runs a local pool carries out at a time, and on which GPUs, where they need several."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import ceil


@dataclass(frozen=True)
class Share:
    """What a worker has of a machine.

    Attributes:
        devices: how many the runs need that it takes.
        visible: the GPUs that it sees; None: those that its parent sees.
    """

    devices: int = 1
    visible: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Slots:
    """A machine as places for runs: a run has one for each device that it needs.

    A run that needs more than there are has all of them.

    Attributes:
        count: of places.
        gpus: dealt over the places, so that no two runs share one unless there are more places;
            empty: runs compute on the CPU.
    """

    count: int
    gpus: tuple[str, ...] = ()

    def needed(self, devices: int) -> int:
        """Places of a run."""
        return min(devices, self.count)

    def taken(self, shares: Iterable[Share]) -> int:
        """Places of several."""
        return sum(self.needed(share.devices) for share in shares)

    def place(self, devices: int, shares: Sequence[Share]) -> Share | None:
        """What a run gets that needs so many devices, beside those that have theirs.

        Returns:
            The GPUs with the fewest runs, or None if there is not room enough.
        """
        if self.taken(shares) + self.needed(devices) > self.count:
            return None
        if not self.gpus:
            return Share(devices)
        load = Counter(gpu for share in shares for gpu in share.visible or ())
        free = [gpu for gpu in self.gpus if load[gpu] < ceil(self.count / len(self.gpus))]
        if len(free) < devices:
            return None
        return Share(devices, tuple(sorted(free, key=load.__getitem__)[:devices]))

    def leaves_room(self, devices: int, shares: Sequence[Share], waiting: Iterable[int]) -> bool:
        """Whether a run may begin although others wait that need more.

        Those that need less than a run that waits have, in all, what it will leave of the machine:
        it only waits for its equals, and has its turn.

        Args:
            devices: that the run needs.
            shares: of the runs under way.
            waiting: devices that runs need for which there is no room yet.
        """
        for more in waiting:
            smaller = [share for share in shares if share.devices < more]
            if self.taken(smaller) + self.needed(devices) > self.count - self.needed(more):
                return False
        return True
