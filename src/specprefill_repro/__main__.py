"""`python -m specprefill_repro` is `specprefill-repro`."""

from specprefill_repro.isolation import start_isolated


def main() -> None:
    """Entry point of both."""
    start_isolated()
    # Only now: it imports what a user's PYTHONPATH could replace.
    from specprefill_repro.cli import main as command_line

    command_line()


if __name__ == "__main__":
    main()
