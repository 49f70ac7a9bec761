"""Builds the extension for the installed PyTorch: `python -m symrail.torch.build`.

It is kept where torch.utils.cpp_extension keeps extensions (TORCH_EXTENSIONS_DIR), by PyTorch's version, and is rebuilt
when its source changes.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

from symrail.errors import LibraryError

SOURCE = Path(__file__).with_name("symmetric_memory.cpp")


def _folders_of_cuda() -> list[str]:
    """The folders of CUDA's headers: its toolkit's, or those that come with PyTorch."""
    from torch.utils.cpp_extension import CUDA_HOME

    spec = importlib.util.find_spec("nvidia")
    roots = [Path(folder) for folder in (spec.submodule_search_locations if spec else None) or []]
    found = [Path(CUDA_HOME) / "include"] if CUDA_HOME else []
    found += [folder for root in roots for folder in root.glob("*/include")]
    return [str(folder) for folder in found if (folder / "cuda_runtime_api.h").exists()]


def build(verbose: bool = False) -> Path:
    """The extension's library, built if necessary. PEs of one host build it once."""
    import torch
    from torch.utils import cpp_extension

    version = torch.__version__.replace(".", "_").replace("+", "_")
    name = f"symrail_torch_{version}"
    try:
        cpp_extension.load(
            name,
            [str(SOURCE)],
            extra_cflags=["-O2", "-std=c++20"],
            extra_ldflags=["-lc10_cuda"],
            extra_include_paths=_folders_of_cuda(),
            with_cuda=False,
            is_python_module=False,
            verbose=verbose,
        )
        return Path(cpp_extension._get_build_directory(name, verbose)) / f"{name}.so"
    except (RuntimeError, OSError, ImportError) as error:
        raise LibraryError(f"the extension for PyTorch {torch.__version__} cannot be built: {error}") from error


if __name__ == "__main__":
    print(build(verbose=True))
