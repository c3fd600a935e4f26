"""The loss of a task's stores, as an error reports it.

    damaged block, truncated or recreated changelog, ... ──> the stores that are to be restored, or the whole directory

Rules of this file: pure; values, and the errors that they come from.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from standfast.replication.offsets import TopicPartition
from standfast.restore.plan import CORRUPT, DIVERGED
from standfast.store.engine import DEFAULT_FAMILY
from standfast.store.errors import Corruption, StandfastError, StateLost
from standfast.store.types.segments import store_of_family


@dataclass(frozen=True, slots=True)
class Loss:
    """Unusable stores of a task, by name with the reason; `damage`: bytes are damaged, perhaps of other stores.

    False if nothing is lost. `whole`: the directory itself cannot be used. `planned`: the restore plan found the loss,
    and does not refuse it. `keep`: the rows may be nowhere else, so a copy of them stays for a person.
    """

    stores: Mapping[str, str] = field(default_factory=dict)
    damage: Corruption | None = None
    whole: bool = False
    planned: bool = False
    keep: bool = False

    def __bool__(self) -> bool:
        return self.whole or self.damage is not None or bool(self.stores)

    @classmethod
    def by(cls, damage: Corruption) -> Loss:
        """The loss that an error of the engine or of a store reports. Raises the error if it is the log's."""
        if damage.of_log:
            raise damage
        stores = frozenset(map(store_of_family, damage.families))
        # The default family holds the task's record, without which no store has a position.
        if DEFAULT_FAMILY in stores:
            return cls(damage=damage, whole=True)
        return cls(dict.fromkeys(sorted(stores), CORRUPT), damage)

    @classmethod
    def unnoted(cls, damaged: Corruption | None, error: BaseException | None) -> Loss:
        """Damage of closed stores that their directory does not remember: no file was named, or the disk refused."""
        found = damaged or error
        if not isinstance(found, Corruption) or found.noted or not is_of_rows(found):
            return cls()
        return cls.by(found)


def is_of_rows(damage: Corruption) -> bool:
    """Whether local rows are damaged; damage in the log, or a serde that cannot read, is no fault of theirs."""
    return not (damage.sources or damage.of_log or damage.of_serde)


def is_lost(error: StandfastError) -> bool:
    """Whether local state must be restored."""
    return is_of_rows(error) if isinstance(error, Corruption) else isinstance(error, StateLost)


def reported_loss(changelogs: Mapping[str, TopicPartition], error: StandfastError) -> Loss:
    """The loss that an error reports of a task, as far as the stored positions do not show it, by its changelogs."""
    if isinstance(error, Corruption):
        return Loss.by(error)
    if not isinstance(error, StateLost) or error.reason != DIVERGED:
        return Loss()
    sources = set(map(TopicPartition._make, error.sources))
    names = [store for store, at in changelogs.items() if at in sources]
    return Loss(dict.fromkeys(names or changelogs, DIVERGED))
