"""Making a package whole: the graphs by the builder, its golden by the runtime that will serve it, then its signature.

Last, where that is wished, it earns what it may do on this machine, so that its first start need not.

The first two meet here because neither may know the other: packages know no runtime, runtimes build nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

from calculet_trio.cli import paths
from calculet_trio.cli.earning import earn
from calculet_trio.errors import ConfigurationRefused
from calculet_trio.packages.build_options import BuildOptions, Progress
from calculet_trio.packages.package_signature import sign_package
from calculet_trio.packages.signing import SigningKey
from calculet_trio.settings.configuration import Configuration

HOST_EXTRA: Final = ("gguf", "onnx", "onnxruntime")


def make_package(
    gguf: Path,
    destination: Path,
    *,
    name: str,
    options: BuildOptions,
    report: Callable[[Progress], None],
    earn_under: Configuration | None = None,
) -> None:
    """Build ``destination`` from ``gguf``, record what the model says, and sign it with this machine's key.

    All of it, or nothing is left.

    Args:
        gguf: the model.
        destination: must not exist.
        name: the package's.
        options: its form.
        report: told of each step.
        earn_under: what would serve it here; None leaves it to the first start to show what it may do.

    Raises:
        calculet_trio.errors.PackageError: the source is of an unsupported kind or damaged.
        calculet_trio.errors.Unavailable: the disk has no room for it.
        calculet_trio.errors.ConfigurationRefused: the ``host`` extra is not installed, or there is no key to sign with.
    """
    try:
        from calculet_trio.packages.build import build_package
        from calculet_trio.runtimes.host import HostRuntime
        from calculet_trio.runtimes.host_golden import record_golden
    except ModuleNotFoundError as error:
        if error.name not in HOST_EXTRA:
            raise
        raise ConfigurationRefused(
            f"building a package needs {error.name}, which is not installed", hint="pip install 'calculet-trio[host]'"
        ) from None

    def report_build(step: Progress) -> None:
        report(Progress(f"build: {step.step}", step.done, step.total))

    key = SigningKey.local(paths.keys())

    def prove(directory: Path) -> None:
        record_golden(directory)
        sign_package(directory, key)
        if earn_under is not None:
            earn(directory, HostRuntime(), configuration=earn_under, report=report)

    build_package(gguf, destination, name=name, options=options, report=report_build, prove=prove)
