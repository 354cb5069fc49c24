"""Find what must not be published: home paths, names of people and machines, tokens, serial numbers.

Two kinds of search. Patterns find what looks like such a thing, on whatever machine it came from; own values (the name
of this user, of this machine, its serial number, secrets in the environment) are looked for letter by letter.
"""

import getpass
import hashlib
import html
import json
import os
import platform
import re
import socket
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

TOKEN = "token"
NAME = r"[^/\s\"'<>\\]+"
PATTERNS = (
    ("home path", rf"/(?:Users|home)/{NAME}|/root/{NAME}|(?i:\b[A-Z]:\\{{1,2}}Users\\{{1,2}}{NAME})"),
    ("temporary path", r"/(?:private/)?var/folders/\w+/\w+"),
    (TOKEN, r"\bhf_[A-Za-z0-9]{16,}"),
    (TOKEN, r"\bgh[pousr]_[A-Za-z0-9]{20,}|\bgithub_pat_\w{20,}|\bglpat-[\w-]{16,}"),
    (TOKEN, r"\bsk-[A-Za-z0-9_-]{20,}|\bAKIA[0-9A-Z]{16}\b|\bxox[abprs]-[\w-]{10,}|\beyJ[\w-]{10,}\.eyJ[\w-]{10,}"),
    (TOKEN, r"(?i:\b(?:bearer|basic) )[A-Za-z0-9+/=_.-]{16,}|-----BEGIN [A-Z ]*PRIVATE KEY-----"),
    (TOKEN, r"(?i:\bhttps?://[^\s/:@\"'<>]+:[^\s/@\"'<>]+@)"),
    ("host name", r"(?i:\b[a-z0-9][a-z0-9-]*\.(?:local|lan|internal|fritz\.box)\b)"),
    ("host name", r"(?i:\b\w+(?:-\w+)*-(?:MacBook(?:-Pro|-Air)?|iMac|Mac-mini|Mac-Studio|Mac-Pro)(?:-\d+)?\b)"),
    ("serial number", r"(?i:serial[ _-]?(?:number|no\.?)?(?: \(system\))?[\"']?\s*[:=]\s*[\"']?)[A-Z0-9]{8,20}\b"),
    ("serial number", r"(?i:(?:platform|hardware|system)[ _-]?UUID[\"']?\s*[:=]\s*[\"']?)[0-9A-Fa-f-]{32,36}"),
    ("network address", r"(?i:\b(?:[0-9a-f]{2}:){5}[0-9a-f]{2}\b)"),
    ("network address", r"\b(?:10\.\d{1,3}|192\.168|172\.(?:1[6-9]|2\d|3[01]))\.\d{1,3}\.\d{1,3}\b"),
    ("mail address", r"\b[\w.+-]+@[\w-]+(?:\.[\w-]+)*\.[a-z]{2,}\b"),
)
COMMON = frozenset(
    "root user admin administrator guest nobody runner ubuntu debian ec2-user vagrant docker build test mac "
    "localhost localhost.localdomain".split()
)
"""Names that say nothing about a person or a machine."""
SECRET_VARIABLE = re.compile(r"TOKEN|SECRET|PASSWORD|PASSWD|API_?KEY|CREDENTIAL", re.IGNORECASE)
DATA_BLOCK = re.compile(r'(?<=<script type="application/json" id="records">).*?(?=</script>)', re.DOTALL)


@dataclass(frozen=True)
class Own:
    """A text of this machine that is looked for letter by letter."""

    kind: str
    text: str


@dataclass(frozen=True)
class Finding:
    kind: str
    shown: str
    """The text that was found; of a secret only its beginning."""
    path: str
    line: int
    times: int
    """In all files."""
    code: str
    """Eight hex digits that stand for kind and text: what an acknowledgement names."""

    def __str__(self) -> str:
        more = f", and {self.times - 1} more" if self.times > 1 else ""
        return f"[{self.code}] {self.kind}: {self.shown!r} in {self.path}, line {self.line}{more}"


def scan(files: dict[str, bytes], own: Iterable[Own]) -> list[Finding]:
    """Search the text of files, and report each text that was found once, with its first place.

    The compressed block of a page and other compressed files are left out: `searchable` has their text.
    """
    searches = [(kind, re.compile(pattern)) for kind, pattern in PATTERNS]
    searches += [(each.kind, re.compile(rf"(?<![\w-]){re.escape(each.text)}(?!\w)", re.IGNORECASE)) for each in own]
    found: dict[tuple[str, str], list[tuple[str, int]]] = {}
    for path, content in sorted(files.items()):
        if path.endswith((".zip", ".parquet")):
            continue
        text = content.decode(errors="replace")
        if path.endswith(".html"):
            text = html.unescape(DATA_BLOCK.sub("", text))
        for kind, pattern in searches:
            for match in pattern.finditer(text):
                line = text.count("\n", 0, match.start()) + 1
                found.setdefault((kind, match[0]), []).append((path, line))
    return [
        Finding(kind, _shown(kind, text), *places[0], len(places), _code(kind, text))
        for (kind, text), places in sorted(found.items())
    ]


def searchable(bundle: dict[str, bytes]) -> dict[str, bytes]:
    """The files of a bundle with the text of those that are compressed: of the page's data, and of the tables."""
    from specprefill_repro.files import json_bytes
    from specprefill_repro.report.data import read_embedded
    from specprefill_repro.trials.schema import BlockReceipt, TrialRecord
    from specprefill_repro.trials.table import parse_table

    texts = {"index.html (its data)": json_bytes(read_embedded(bundle["index.html"].decode()))}
    for name, model in (("trials.parquet", TrialRecord), ("blocks.parquet", BlockReceipt)):
        rows = parse_table(Path(name), bundle[name], model).to_pylist()
        texts[f"{name} (as JSON, a row a line)"] = "\n".join(
            json.dumps(row, default=str, ensure_ascii=False) for row in rows
        ).encode()
    return {**bundle, **texts}


def _shown(kind: str, text: str) -> str:
    text = text if len(text) <= 80 else text[:77] + "..."
    return text[:6] + "..." if kind == TOKEN else text


def _code(kind: str, text: str) -> str:
    return hashlib.sha256(f"{kind}\n{text}".encode()).hexdigest()[:8]


def own_values(environment: dict[str, str]) -> list[Own]:
    """What is to be looked for of this user and this machine; names that say nothing are left out."""
    names = {environment.get(key, "") for key in ("USER", "LOGNAME", "SUDO_USER", "USERNAME")} | {_user(), _full_name()}
    host = socket.gethostname()
    hosts = {host, host.partition(".")[0], platform.node(), *_computer_names()}
    found = [Own("user name", name) for name in names]
    found += [Own("host name", name) for name in hosts]
    found += [Own("home path", str(Path.home()))] if len(Path.home().parts) > 2 else []
    found += [Own("serial number", number) for number in _serial_numbers()]
    found += [
        Own(TOKEN, value)
        for name, value in environment.items()
        if SECRET_VARIABLE.search(name) and len(value) >= 8 and not Path(value).exists()
    ]
    kept = [each for each in found if len(each.text) >= 3 and each.text.casefold() not in COMMON]
    return sorted(set(kept), key=lambda each: (each.kind, each.text))


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return ""


def _full_name() -> str:
    try:
        import pwd

        return pwd.getpwuid(os.getuid()).pw_gecos.partition(",")[0]
    except (ImportError, KeyError):
        return ""


def _computer_names() -> list[str]:
    if sys.platform != "darwin":
        return []
    return [_output("/usr/sbin/scutil", "--get", name) for name in ("ComputerName", "LocalHostName")]


def _serial_numbers() -> list[str]:
    """Serial numbers and identifiers of this machine, as far as this user may read them."""
    if sys.platform == "darwin":
        told = _output("/usr/sbin/ioreg", "-rd1", "-c", "IOPlatformExpertDevice")
        return re.findall(r'"IOPlatform(?:SerialNumber|UUID)" = "([^"]+)"', told)
    numbers = []
    for path in ("/sys/class/dmi/id/product_serial", "/sys/class/dmi/id/product_uuid", "/etc/machine-id"):
        try:
            numbers.append(Path(path).read_text().strip())
        except OSError:
            continue
    return [number for number in numbers if len(number) >= 8 and any(char.isdigit() for char in number)]


def _output(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip()
