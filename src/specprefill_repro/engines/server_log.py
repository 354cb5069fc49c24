"""A server's log as it is kept: without secrets and private paths, of limited size, compressed."""

import gzip
import hashlib
import re
from collections.abc import Mapping
from pathlib import Path

from specprefill_repro.files import write_bytes

MAX_KEPT = 4_000_000
"""Characters that are kept, half from the beginning and half from the end."""
SECRETS = re.compile(
    r"(?i)\b(hf_[a-z0-9]{20,}|gh[pousr]_[a-z0-9]{20,}|sk-[a-z0-9_-]{16,}|(?<=bearer )[a-z0-9._~+/=-]{8,})"
)


def cleaned(text: str, replace: Mapping[str, str]) -> str:
    """`text` without the keys of `replace` (secrets and paths; longest first), without tokens, without the home."""
    for secret in sorted(replace, key=len, reverse=True):
        text = text.replace(secret, replace[secret])
    home = str(Path.home())
    if len(home) > 1:
        text = re.sub(re.escape(home) + r"(?=/|\b)", "~", text)
    return SECRETS.sub("[secret]", text)


def keep_log(path: Path, text: str) -> str:
    """Write a cleaned log to `path` (gzip) and return the file's SHA-256; the same text gives the same bytes."""
    if len(text) > MAX_KEPT:
        half = MAX_KEPT // 2
        text = f"{text[:half]}\n[... {len(text) - MAX_KEPT:,} characters left out ...]\n{text[-half:]}"
    content = gzip.compress(text.encode(), mtime=0)
    write_bytes(path, content)
    return hashlib.sha256(content).hexdigest()
