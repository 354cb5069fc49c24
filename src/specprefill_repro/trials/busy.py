"""When other processes keep a machine so busy that times on it say little."""

from specprefill_repro.trials.schema import MachineState

LOAD_PER_CORE = 1.5
"""A trial itself loads at most every core once; more than this had to wait for others."""
OTHER_CPU_PERCENT = 50.0
"""Of the whole machine, used by other processes both just before and just after a trial."""


def is_overloaded(load_1min: float, cores: int) -> bool:
    return load_1min > LOAD_PER_CORE * max(cores, 1)


def was_busy(before: MachineState, after: MachineState, cores: int) -> bool:
    """Whether other processes took a good part of the machine around a trial."""
    others = min(before.other_cpu_percent or 0.0, after.other_cpu_percent or 0.0)
    return is_overloaded(before.load_1min, cores) or others > OTHER_CPU_PERCENT
