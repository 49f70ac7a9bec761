"""The libraries in the wheel that stand in for those of NCCL, NVSHMEM and cuDecomp, or that these load."""

from __future__ import annotations

from pathlib import Path

from .errors import LibraryError

_FOLDER = Path(__file__).parent / "lib"

# NVSHMEM's versions, and the number of the transport interface that each of them asks for.
_INTERFACES = {"3.4": 3, "3.5": 4, "3.6": 5, "3.7": 6, "3.8": 7}

_NVSHMEM_WHEELS = ("nvidia-nvshmem-cu13", "nvidia-nvshmem-cu12")


def nccl_plugin_path() -> str:
    """The path of the network plugin for NCCL, for `NCCL_NET_PLUGIN`. Local.

    Raises LibraryError if this package was not installed from its wheel.
    """
    return _file("libnccl-net-symrail.so", "NCCL's network plugin", "scripts/install.sh")


def nccl_path() -> str:
    """The path of the library with NCCL's interface, for `LD_PRELOAD`, `VLLM_NCCL_SO_PATH` and the like. Local.

    Raises LibraryError if this package was not installed from its wheel.
    """
    return _file("libsymrail_nccl.so", "the library with NCCL's interface", "scripts/install.sh")


def cudecomp_path() -> str:
    """The path of the library with cuDecomp's interface, `libcudecomp.so.0`: its folder is for `LD_LIBRARY_PATH`. Local.

    Raises LibraryError if this package was not installed from its wheel.
    """
    return _file("cudecomp/libcudecomp.so.0", "the library with cuDecomp's interface", "scripts/install.sh")


def nvshmem_path(version: str | None = None) -> str:
    """The path of the transport for NVSHMEM, for `LD_PRELOAD`, with `NVSHMEM_REMOTE_TRANSPORT=libfabric`. Local.

    `version`: NVSHMEM's, such as "3.4" or "3.4.5"; by default that of the installed package nvidia-nvshmem-cu13 or
    nvidia-nvshmem-cu12.

    Raises LibraryError if that package is missing, if the version is not one of 3.4 to 3.8, or if this package was
    not installed from its wheel.
    """
    if version is None:
        version = _installed_nvshmem()
    interface = _INTERFACES.get(".".join(version.split(".")[:2]))
    if interface is None:
        raise LibraryError(f"NVSHMEM {version} is not one of {', '.join(_INTERFACES)}")
    return _file(
        f"nvshmem_transport_libfabric.so.{interface}", "the transport for NVSHMEM", "scripts/nvshmem-install.sh"
    )


def _installed_nvshmem() -> str:
    # As slow to import as the rest of this package.
    from importlib import metadata

    for wheel in _NVSHMEM_WHEELS:
        try:
            return metadata.version(wheel)
        except metadata.PackageNotFoundError:
            pass
    raise LibraryError(f"neither {' nor '.join(_NVSHMEM_WHEELS)} is installed; give NVSHMEM's version")


def _file(name: str, what: str, script: str) -> str:
    path = _FOLDER / name
    if not path.exists():
        raise LibraryError(f"{what} is in the wheel only, there is no {path}; {script} installs it elsewhere")
    return str(path)
