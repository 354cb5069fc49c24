"""Files on disk: atomic writes, size-limited reads, hashes. Everything the pipeline stores goes through here."""

import errno
import hashlib
import json
import os
import stat
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, BinaryIO, NoReturn, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from specprefill_repro.errors import Exit, ReproError

Model = TypeVar("Model", bound=BaseModel)

MAX_CONFIG_BYTES = 1_000_000
MAX_JSON_BYTES = 1_000_000_000
MAX_YAML_DEPTH = 50
MAX_INTEGER_DIGITS = 100


def canonical_json(value: Any) -> bytes:
    """Return the one byte string that stands for `value`: sorted keys, no spaces, UTF-8, no NaN."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def content_id(value: Any) -> str:
    """SHA-256, as 64 hex digits, of the canonical JSON of a plain value or a pydantic model."""
    plain = value.model_dump(mode="json") if isinstance(value, BaseModel) else value
    return hashlib.sha256(canonical_json(plain)).hexdigest()


def sha256_file(path: Path, progress: Callable[[int], None] | None = None) -> str:
    """SHA-256 of a file as 64 hex digits; `progress` is told the number of bytes of each block read."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 22):
            digest.update(block)
            if progress:
                progress(len(block))
    return digest.hexdigest()


@contextmanager
def atomic_file(path: Path) -> Iterator[BinaryIO]:
    """Yield a file that replaces `path` only once it is complete and on disk.

    Temporary file in the same folder, fsync, rename, fsync of the folder; on any error the old file stays as it was.

    Raises:
        ReproError: the disk is full, or the folder may not be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    except OSError as error:
        explain_write_error(error, path)
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.chmod(0o644)
        temporary.replace(path)
        sync_folder(path.parent)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        explain_write_error(error, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def sync_folder(folder: Path) -> None:
    """Make sure that what was renamed in a folder is so on disk too."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def explain_write_error(error: OSError, path: Path) -> NoReturn:
    """Raise a full disk or a missing permission as a ReproError about `path`; raise any other error as it is."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        raise ReproError(
            f"Could not write {path}: the disk is full.",
            "The file system that holds it has no room left; what was there before is unchanged.",
            f"Free some space (df -h '{path.parent}'), then run the same command again; finished work is kept.",
            Exit.ENVIRONMENT,
        ) from error
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        raise ReproError(
            f"Could not write {path}: {error.strerror}.",
            "The folder belongs to another user or is read-only.",
            f"Check it with: ls -ld '{path.parent}'",
            Exit.ENVIRONMENT,
        ) from error
    raise error


def users_path(text: str) -> Path:
    """A path as a user writes it; `~` and `~NAME` stand for home folders.

    Raises:
        ReproError: there is no such user.
    """
    try:
        return Path(text).expanduser()
    except RuntimeError as error:
        raise ReproError(
            f"{text} names the home folder of nobody on this machine.",
            "The name after ~ is no user's, or this process has no home.",
            "Write the folder's whole path.",
        ) from error


def write_bytes(path: Path, content: bytes) -> None:
    """Replace `path` by `content` atomically."""
    with atomic_file(path) as file:
        file.write(content)


def write_all(files: Mapping[Path, bytes]) -> None:
    """Replace several files; none before all of them are on disk, then one after the other, the first one last.

    Raises:
        ReproError: as `atomic_file`; all are then as they were.
    """
    with ExitStack() as stack:
        for path, content in files.items():
            file = stack.enter_context(atomic_file(path))
            file.write(content)
            file.flush()
            os.fsync(file.fileno())


def write_text(path: Path, content: str) -> None:
    """Replace `path` by `content` (UTF-8) atomically."""
    write_bytes(path, content.encode())


def json_bytes(value: Any) -> bytes:
    """A plain value or a pydantic model as indented JSON with sorted keys."""
    plain = value.model_dump(mode="json") if isinstance(value, BaseModel) else value
    return (json.dumps(plain, indent=1, sort_keys=True, ensure_ascii=False, allow_nan=False) + "\n").encode()


def write_json(path: Path, value: Any) -> None:
    """Replace `path` by a plain value or a pydantic model as `json_bytes` has it, atomically."""
    write_bytes(path, json_bytes(value))


def read_limited(path: Path | str, limit: int) -> bytes:
    """Read a whole file of at most `limit` bytes.

    Raises:
        ReproError: the file is missing, unreadable, larger, or not a regular file.
    """
    try:
        # Opening a pipe waits for its writer, perhaps for ever; like this it does not.
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            content = _read_open(handle, limit)
        finally:
            os.close(handle)
    except OSError as error:
        raise ReproError(
            f"Could not read {path}: {error.strerror}.",
            "The file is missing, or is not a readable file.",
            f"Check it with: ls -l '{path}'",
        ) from error
    if len(content) > limit:
        raise ReproError(
            f"{path} is larger than {limit:,} bytes.",
            "A file of this kind is never that large; it is probably not what its name says.",
            f"Look at it with: head -c 300 '{path}'",
        )
    return content


def _read_open(handle: int, limit: int) -> bytes:
    """All bytes of an open file, or the first ones when it has more than `limit`: then more than `limit` of them."""
    seen = os.fstat(handle)
    if not stat.S_ISREG(seen.st_mode):
        raise OSError(errno.EINVAL, "not a regular file")
    # A file can grow, or not have the size that is said; only an empty block is its end.
    parts, room = [], limit + 1
    while room and (part := os.read(handle, min(room, seen.st_size + 1))):
        parts.append(part)
        room -= len(part)
    return b"".join(parts)


def read_model(path: Path, model: type[Model], limit: int = MAX_JSON_BYTES) -> Model:
    """Read a JSON file into a pydantic model.

    Raises:
        ReproError: missing, too large, not JSON, or not of that shape.
    """
    return parse_model(path, read_limited(path, limit), model)


def parse_model(path: Path | str, content: bytes, model: type[Model]) -> Model:
    """The content of the JSON file `path` as a pydantic model.

    Raises:
        ReproError: not JSON, or not of that shape.
    """
    try:
        return model.model_validate_json(content)
    except ValidationError as error:
        raise ReproError(
            f"{path} does not hold a valid {model.__name__}: {validation_summary(error)}",
            "The file was edited, damaged, or written by another version of this package.",
            f"Delete it and run the same command again: rm '{path}'",
            Exit.VERIFICATION,
        ) from error


class _SafeLoader(yaml.CSafeLoader):
    """Safe YAML without duplicate keys or timestamps; libyaml's, since the parser in Python takes ten times as long."""

    def construct_object(self, node: Any, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep)
        except (ValueError, LookupError, AttributeError, TypeError, ArithmeticError) as error:
            # What PyYAML raises for `!!int abc`, `!!bool maybe` and their like.
            kind = node.tag.rpartition(":")[2]
            raise yaml.constructor.ConstructorError(
                None, None, f"{_short(node.value)} is no value of the kind {kind}", node.start_mark
            ) from error

    def construct_yaml_int(self, node: Any) -> int:
        # Reading a number takes a time that grows with the square of its digits.
        if len(node.value) > MAX_INTEGER_DIGITS:
            raise yaml.constructor.ConstructorError(
                None, None, f"a number has more than {MAX_INTEGER_DIGITS} digits", node.start_mark
            )
        return int(super().construct_yaml_int(node))

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        if not isinstance(node, yaml.MappingNode):
            raise yaml.constructor.ConstructorError(None, None, "this is no mapping", node.start_mark)
        seen = set()
        for name, _ in node.value:
            key = self.construct_object(name, deep=True)
            if key in seen:
                raise yaml.YAMLError(f"the key {key!r} stands twice")
            seen.add(key)
        return super().construct_mapping(node, deep)


_SafeLoader.add_constructor("tag:yaml.org,2002:int", _SafeLoader.construct_yaml_int)

# A date such as 2026-03-20 stays the text that was written.
_SafeLoader.yaml_implicit_resolvers = {
    letter: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for letter, resolvers in yaml.CSafeLoader.yaml_implicit_resolvers.items()
}


def _check_shape(content: bytes) -> None:
    """Refuse aliases (an alias bomb needs them), and nesting deeper than the stack of a parser.

    Raises:
        yaml.YAMLError: with what was found.
    """
    depth = 0
    for event in yaml.parse(content, Loader=_SafeLoader):
        if isinstance(event, yaml.AliasEvent):
            raise yaml.YAMLError("aliases (*name) are not allowed")
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > MAX_YAML_DEPTH:
            raise yaml.YAMLError(f"lists and mappings are nested more than {MAX_YAML_DEPTH} deep")


def read_yaml(path: Path, limit: int = MAX_CONFIG_BYTES) -> Any:
    """Read a YAML file of at most `limit` bytes into plain values; safe tags only, no aliases, no duplicate keys.

    Raises:
        ReproError: missing, too large, or not such YAML.
    """
    content = read_limited(path, limit)
    try:
        _check_shape(content)
        return yaml.load(content, Loader=_SafeLoader)
    except (yaml.YAMLError, ValueError, LookupError, AttributeError, TypeError, RecursionError) as error:
        raise ReproError(
            f"{path} is not YAML that this package reads: {' '.join(str(error).split())}",
            "A typing error, or a feature (aliases, tags, nesting) that configuration files here may not use.",
            f"Correct the file: {path}",
        ) from error


def read_yaml_model(path: Path, model: type[Model]) -> Model:
    """Read a YAML file into a pydantic model.

    Raises:
        ReproError: as `read_yaml`, or the content is not of that shape; names the key and what it may hold.
    """
    value = read_yaml(path)
    try:
        # JSON mode: a list may become a tuple, as it must when the same model is read back from JSON.
        return model.model_validate_json(canonical_json(value))
    except (ValidationError, TypeError, ValueError) as error:
        # The JSON writer refuses two things that YAML can hold: endless numbers, and keys that are not text.
        other = "a number in it is .inf or .nan, or a key is not text"
        summary = validation_summary(error) if isinstance(error, ValidationError) else other
        raise ReproError(
            f"{path} is not a valid {model.__name__.lower()}: {summary}",
            "A key is misspelt or missing, or its value is of the wrong kind or out of range.",
            f"Correct the file; config/README.md describes every key: {path}",
        ) from error


def validation_summary(error: ValidationError) -> str:
    """Say in one line where a value is wrong and how; at most five places."""
    found = error.errors()
    # A list whose only item is wrong counts as empty as well; that is no fault of its own.
    faults = [
        item
        for item in found
        if item["type"] != "too_short" or not any(_lies_below(other["loc"], item["loc"]) for other in found)
    ]
    places = [
        f"{'.'.join(str(part) for part in item['loc']) or 'the file'}: {item['msg']} (got {_short(item['input'])})"
        for item in faults[:5]
    ]
    more = len(faults) - len(places)
    return "; ".join(places) + (f"; and {more} more" if more else "")


def _lies_below(place: tuple[int | str, ...], other: tuple[int | str, ...]) -> bool:
    return len(place) > len(other) and place[: len(other)] == other


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
