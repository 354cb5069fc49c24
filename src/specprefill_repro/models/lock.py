"""`specprefill-repro lock`: which models are locked, and what is said about each."""

from collections.abc import Callable

from specprefill_repro.models.fetch import confirm_lock, lock_model
from specprefill_repro.models.load import locked_model
from specprefill_repro.models.naming import sources_named
from specprefill_repro.models.schema import HubSource, LockedModel
from specprefill_repro.project import Project


def lock_named(project: Project, names: list[str], say: Callable[[str], object]) -> None:
    """Lock the models of studies that are not locked yet, and models that are named themselves.

    An entry that a run wrote on first use is confirmed as it is when its study is named.

    Raises:
        ReproError: as `lock_model`; entries that were written before stay.
    """
    for name in sources_named(project, names):
        entry = None if name in names else locked_model(project, name)
        if entry is None:
            say(_told(name, lock_model(project, name), "locked"))
        elif entry.first_use:
            say(_told(name, confirm_lock(project, name), "confirmed as locked on first use"))
        else:
            say(_told(name, entry, "locked before"))


def _told(name: str, entry: LockedModel, how: str) -> str:
    where = f" at {entry.source.revision}" if isinstance(entry.source, HubSource) else ""
    return f"{name}: {how}{where}, {len(entry.files)} files, {sum(file.size for file in entry.files):,} bytes"
