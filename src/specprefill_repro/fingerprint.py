"""Fingerprints of code: what a result depends on, no more and no less.

The fingerprint of a module covers every module of this package that it imports, directly or not, also inside
functions. Comments, docstrings and formatting do not count: they can't change a number. A module that is imported by
name (importlib) is not followed; whoever does that names it (see trials/block.py).
"""

import ast
import hashlib
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

PACKAGE = "specprefill_repro"


def code_fingerprint(modules: Iterable[str]) -> str:
    """SHA-256 over the code of the given modules and all modules of this package that they import."""
    digest = hashlib.sha256()
    for name in sorted(import_closure(modules)):
        digest.update(f"{name}={_module_digest(_source(name))}\n".encode())
    return digest.hexdigest()


def import_closure(modules: Iterable[str]) -> set[str]:
    """The given modules and every module of this package that they import, directly or not."""
    found: set[str] = set()
    waiting = list(modules)
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting.extend(_imports(_source(name)))
    return found


def _source(module: str) -> Path:
    """File of a module of this package; found by name alone, since importing it could load heavy libraries."""
    source = _find(module)
    if source is None:
        raise ModuleNotFoundError(f"no module {module!r} to take a fingerprint of")
    return source


def _find(module: str) -> Path | None:
    path = Path(__file__).parent.joinpath(*module.split(".")[1:])
    for candidate in (path.with_suffix(".py"), path / "__init__.py"):
        if candidate.is_file():
            return candidate
    return None


@cache
def _tree(source: Path) -> ast.Module:
    return ast.parse(source.read_bytes())


@cache
def _imports(source: Path) -> frozenset[str]:
    names: set[str] = set()
    for node in ast.walk(_tree(source)):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            names.add(node.module)
            # `from package import module` names a module too.
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    return frozenset(name for name in names if name.partition(".")[0] == PACKAGE and _find(name) is not None)


def definitions(modules: Iterable[str]) -> dict[str, dict[str, str]]:
    """What `code_fingerprint` covers, piece by piece: module file -> function, class or constant -> 16 hex digits.

    Says which of them changed; whether anything did is for `code_fingerprint` alone.
    """
    return {
        _source(name).relative_to(Path(__file__).parent).as_posix(): dict(_definitions(_source(name)))
        for name in sorted(import_closure(modules))
    }


@cache
def _module_digest(source: Path) -> str:
    return hashlib.sha256(ast.dump(_code(source)).encode()).hexdigest()


@cache
def _definitions(source: Path) -> tuple[tuple[str, str], ...]:
    dumps: dict[str, str] = {}
    for node in _code(source).body:
        for name, code in _named(node):
            dumps[name] = dumps.get(name, "") + ast.dump(code)
    return tuple((name, hashlib.sha256(dump.encode()).hexdigest()[:16]) for name, dump in dumps.items())


def _named(node: ast.stmt, inside: str = "") -> Iterator[tuple[str, ast.AST]]:
    """The pieces of a statement, by what a reader calls them; a class is its methods and the rest of it."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        yield f"function {inside}{node.name}", node
    elif isinstance(node, ast.ClassDef):
        methods = [part for part in node.body if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef)]
        fields = [part for part in node.body if part not in methods]
        yield f"class {inside}{node.name}", ast.ClassDef(**{**dict(ast.iter_fields(node)), "body": fields})
        for method in methods:
            yield from _named(method, f"{inside}{node.name}.")
    elif isinstance(node, ast.Import | ast.ImportFrom):
        yield "imports", node
    elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
        yield node.targets[0].id, node
    elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        yield node.target.id, node
    else:
        yield "other statements", node


@cache
def _code(source: Path) -> ast.Module:
    """The module without comments and docstrings."""
    tree = ast.parse(source.read_bytes())
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            # A bare string is a docstring, or the description of the field above it.
            node.body = [  # type: ignore[attr-defined]
                part for part in body if not (isinstance(part, ast.Expr) and _is_text(part.value))
            ]
    return tree


def _is_text(value: ast.expr) -> bool:
    return isinstance(value, ast.Constant) and isinstance(value.value, str)
