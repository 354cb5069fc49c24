"""A fast BLAS for MLX on Linux CPUs.

The Linux wheel of MLX links a slow reference BLAS: 2 GFLOPS where the same core reaches over 100. MLX looks the
symbols `cblas_sgemm`, `cblas_dgemm` and `cblas_cgemm` up when it is loaded, so a library that is opened before it with
RTLD_GLOBAL serves them instead. The package scipy-openblas32 is such a library, but prefixes its symbols with
`scipy_`; `patchelf` makes a renamed copy, once for each environment. macOS needs none of this.
"""

import ctypes
import importlib.metadata
import os
import subprocess
import sys
import tempfile
from pathlib import Path

SYMBOLS = ("cblas_sgemm", "cblas_dgemm", "cblas_cgemm")
STOCK = "stock (reference BLAS of the MLX wheel)"


def use_fast_blas(threads: int = 1) -> str:
    """Open OpenBLAS for MLX; call this before the first import of mlx. Returns the name of the BLAS in use.

    One thread by default: two were no faster end to end, and several times slower on a busy machine.
    Falls back to the stock library, and says why in the returned name, when OpenBLAS can't be had.
    """
    if not sys.platform.startswith("linux"):
        return "system"
    if "mlx.core" in sys.modules:
        raise RuntimeError("use_fast_blas() must be called before mlx is imported")
    os.environ.setdefault("OPENBLAS_NUM_THREADS", str(threads))
    try:
        library = renamed_openblas()
        opened = ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)
        describe = opened.scipy_openblas_get_config
        describe.restype = ctypes.c_char_p
        config = " ".join(describe().decode().split())
    except (OSError, AttributeError, ImportError, subprocess.SubprocessError) as error:
        return _not_used(error)
    return f"{config} threads={os.environ['OPENBLAS_NUM_THREADS']}"


def preloaded_blas(folder: Path) -> tuple[dict[str, str], str]:
    """The same for a process that is not ours: environment variables that give its MLX OpenBLAS, and the BLAS's name.

    Args:
        folder: gets a link to the library; LD_PRELOAD can't name a path with a space in it.
    """
    if not sys.platform.startswith("linux"):
        return {}, "system"
    try:
        library = renamed_openblas()
        describe = ctypes.CDLL(str(library)).scipy_openblas_get_config
        describe.restype = ctypes.c_char_p
        config = " ".join(describe().decode().split())
    except (OSError, AttributeError, ImportError, subprocess.SubprocessError) as error:
        return {}, _not_used(error)
    link = folder / "libblas.so"
    link.symlink_to(library)
    return {"LD_PRELOAD": str(link), "OPENBLAS_NUM_THREADS": "1"}, f"{config} threads=1"


def _not_used(error: Exception) -> str:
    """The reason as a record may have it: without the folders of this machine, which messages are full of."""
    return f"{STOCK}; OpenBLAS not used: {type(error).__name__}"


def renamed_openblas() -> Path:
    """Path of the renamed copy, made on first use beside the environment's other files.

    Raises:
        ImportError: scipy-openblas32 is not installed.
        OSError, SubprocessError: the copy could not be made.
    """
    distribution = importlib.metadata.distribution("scipy-openblas32")
    source = Path(str(distribution.locate_file("scipy_openblas32/lib/libscipy_openblas.so")))
    copy = Path(sys.prefix) / "share" / "specprefill-repro" / f"libcblas-openblas-{distribution.version}.so"
    if copy.exists():
        return copy
    copy.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=copy.parent) as folder:
        names = Path(folder) / "names"
        names.write_text("".join(f"scipy_{symbol} {symbol}\n" for symbol in SYMBOLS))
        made = Path(folder) / copy.name
        patchelf = Path(sys.prefix) / "bin" / "patchelf"
        command = [str(patchelf), "--rename-dynamic-symbols", str(names), "--output", str(made), str(source)]
        subprocess.run(command, check=True, capture_output=True)
        made.replace(copy)
    return copy
