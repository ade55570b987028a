# SPDX-License-Identifier: Apache-2.0
"""The LMCache versions whose L2 interfaces this package implements."""

import importlib.metadata

SUPPORTED = ("0.5.4", "0.5.5", "0.5.6")


def check() -> None:
    """Raises RuntimeError if the installed LMCache is another version."""
    try:
        installed = importlib.metadata.version("lmcache")
    except importlib.metadata.PackageNotFoundError:
        return  # the connector is used without LMCache; its classes cannot mismatch
    if installed not in SUPPORTED:
        raise RuntimeError(
            f"lmcache {installed} is not supported by bowhead_kv.lmcache; install one of "
            f"{', '.join(SUPPORTED)}"
        )
