"""The result of the gate, as it lies on disk."""

from specprefill_repro.schema import Frozen


class Check(Frozen):
    name: str
    passed: bool
    measured: str
    """What was found, with its value, in words."""
    required: str
    """What would have been right."""
    says: str = ""
    """What is checked, in one sentence for a reader who knows neither the paper nor the code."""
    guards: tuple[int, ...] = ()
    """Pitfalls that this check guards against; numbers of `specprefill_repro.gate.pitfalls`."""


class GateResult(Frozen):
    pair: str
    target: str
    draft: str
    target_weights_sha256: str
    draft_weights_sha256: str
    fingerprint: str
    checks: tuple[Check, ...]

    @property
    def passed(self) -> bool:
        return bool(self.checks) and all(check.passed for check in self.checks)

    @property
    def failures(self) -> str:
        """The failed checks in one sentence; empty when all passed."""
        if not self.checks:
            return "nothing was checked"
        return "; ".join(f"{check.name}: {check.measured}" for check in self.checks if not check.passed)
