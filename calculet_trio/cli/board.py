"""The board for the commands: its library found, a calbin asked, a package made of it and proved on it.

Source: SPEC section 14; CLI.md "Commands".
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from calculet_trio import __version__
from calculet_trio.cli import paths
from calculet_trio.errors import Unavailable
from calculet_trio.ids import GenerationId
from calculet_trio.packages import golden, manifest_json
from calculet_trio.packages.build_options import Progress
from calculet_trio.packages.calbin import Calbin, StepTime, is_emulated, read_calbin
from calculet_trio.packages.calbin_package import Artefacts, PackageText, build_calbin_package
from calculet_trio.packages.calbin_plan import CalbinPlan
from calculet_trio.packages.calbin_writer import BYTE_VOCABULARY, EmulatedShape
from calculet_trio.packages.emulated_package import TARGET as EMULATOR
from calculet_trio.packages.emulated_package import build_emulated_package
from calculet_trio.packages.hugging_face import HuggingFaceTokenizer
from calculet_trio.packages.manifest import Manifest
from calculet_trio.packages.package_signature import sign_package
from calculet_trio.packages.signing import SigningKey

if TYPE_CHECKING:
    from calculet_trio.runtimes.calrt import CalrtRuntime
    from calculet_trio.runtimes.calrt_library import Place
    from calculet_trio.runtimes.device_model import DeviceModel

BUILDS: Final = ("calrt", "emulator")
"""What the binding may be linked with, in the order in which one looks for it."""
LOCKS: Final = Path("/run/lock")
GENERATION: Final = GenerationId(1)
TRIAL: Final = EmulatedShape(
    batches=(1, 4, 8), lanes=8, max_seq_len=256, vocab_size=BYTE_VOCABULARY, kv_bytes_per_token=4
)
"""Small, and with every kind of submodel: what conformance is tried on where there is no board."""

Report = Callable[[Progress], None]


def built_libraries() -> tuple[Path, ...]:
    """Where ``calculet-trio binding build`` puts the library, whether or not it is there."""
    from calculet_trio.runtimes.calrt_library import FILE

    return tuple(paths.binding(kind) / "lib" / FILE for kind in BUILDS)


def library_places(library: Path | None = None) -> tuple[Place, ...]:
    """Where a daemon looks for the library, the likeliest first.

    Args:
        library: ``device.library``; None where it is not configured.
    """
    from calculet_trio.runtimes.calrt_library import places

    return tuple(places(library, built_libraries(), os.environ))


def found_library(library: Path | None = None) -> tuple[Path, bool]:
    """The library that a daemon would load, and whether it is linked with the emulator.

    Raises:
        calculet_trio.errors.Unavailable: there is none; the message says where was looked.
    """
    from calculet_trio.runtimes.calrt_library import load

    found = load(library, built_libraries())
    return found.path, found.is_emulator


def board_runtime(
    library: Path | None = None, *, device: Path | None = None, accept_untried: bool = False
) -> CalrtRuntime:
    """The runtime of this machine's board, not opened yet.

    Args:
        library: the binding's library; None to look for it.
        device: the board's device file; None for the only one.
        accept_untried: see `calculet_trio.runtimes.calrt.BoardOptions`.

    Raises:
        calculet_trio.errors.Unavailable: there is no library; the message says where was looked.
    """
    from calculet_trio.runtimes.calrt import BoardOptions, CalrtRuntime
    from calculet_trio.runtimes.calrt_library import load

    lock = None if device is None else LOCKS / f"{device.name}.lock"
    options = BoardOptions(lock=lock, accept_untried=accept_untried)
    return CalrtRuntime(load(library, built_libraries()), options)


def describe_calbin(shards: Sequence[Path], *, whole: bool) -> tuple[Calbin, str]:
    """What a calbin says of itself, and the kind of device that it is for; a real one is read by its board's runtime.

    Raises:
        calculet_trio.errors.PackageError: it is damaged, or the runtime does not take it.
        calculet_trio.errors.Unavailable: a real one, and there is no library or board.
    """
    if is_emulated(shards[0]):
        return read_calbin(shards, whole=whole), EMULATOR
    runtime = board_runtime()
    try:
        kind = runtime.open().kind
        return runtime.read_calbin(tuple(shards)), kind
    finally:
        runtime.close()


def make_calbin_package(
    shards: Sequence[Path],
    destination: Path,
    *,
    name: str,
    tokenizer: Path,
    plan: CalbinPlan,
    recording: Path | None,
    package_version: str,
    report: Report,
) -> None:
    """Build ``destination`` from a compiler's artefacts, with its golden, signed by this machine; whole, or nothing.

    This machine's key is believed for the emulator alone: a board's package is signed again, by a key that the
    configuration names (``calculet-trio package sign --key``).

    Args:
        shards: the calbin's files, in their order.
        destination: must not exist.
        name: the package's name.
        tokenizer: a Hugging Face tokenizer directory, with ``config.json``.
        plan: which submodel does what.
        package_version: what the package calls itself.
        recording: a directory with a ``golden.json``; None to record what the model says now.
        report: told of every step.

    Raises:
        calculet_trio.errors.PackageError: what does not fit, by name.
        calculet_trio.errors.Unavailable: golden is to be recorded, and there is no board; or the disk is full.
    """
    calbin, target = describe_calbin(shards, whole=True)
    vocab_size = calbin.vocab_size
    text = HuggingFaceTokenizer(tokenizer, vocab_size=vocab_size)
    artefacts = Artefacts(
        shards=tuple(shards),
        calbin=calbin,
        plan=plan,
        architecture=text.architecture(),
        text=PackageText(vocabulary=text.vocabulary(), special=text.special(), chat_template=text.chat_template()),
        target=target,
        package_version=package_version,
    )

    key = SigningKey.local(paths.keys())

    def prove(directory: Path) -> None:
        if recording is not None:
            _take_recording(recording, directory)
        elif target == EMULATOR:
            _record_emulated(directory)
        else:
            _record_on_board(directory)
        sign_package(directory, key)

    build_calbin_package(artefacts, destination, name=name, report=report, prove=prove)


def make_emulated_package(
    shape: EmulatedShape, destination: Path, *, name: str, package_version: str = "1", report: Report
) -> None:
    """Build ``destination`` for the emulator of the board's runtime; needs no library.

    Raises:
        calculet_trio.errors.PackageError: ``destination`` exists.
    """
    key = SigningKey.local(paths.keys())

    def prove(directory: Path) -> None:
        _record_emulated(directory)
        sign_package(directory, key)

    build_emulated_package(shape, destination, name=name, package_version=package_version, report=report, prove=prove)


def trial_package() -> str | None:
    """A small package for conformance on the emulator, made where there is none; None where a board is to be tried.

    Returns:
        Its directory; None to take the only package of the store, as everywhere.

    Raises:
        calculet_trio.errors.Unavailable: there is no library, or the cache cannot be written.
    """
    _, is_emulator = found_library()
    if not is_emulator:
        return None
    place = paths.binding("emulator") / f"trial-{__version__}"
    if not place.is_dir():
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            make_emulated_package(TRIAL, place, name="trial", report=lambda _progress: None)
        except OSError as error:
            raise Unavailable(f"{place.parent} cannot be written: {error.strerror}") from error
    return str(place)


def shape_of_device(path: Path) -> EmulatedShape:
    """The emulated calbin of a device file: its lanes, batches, context, vocabulary, and times.

    Raises:
        calculet_trio.errors.ConfigurationRefused: the file is not one, or a number is beyond a calbin.
    """
    from calculet_trio.runtimes.device_model import load_device

    board = load_device(path)
    return EmulatedShape(
        batches=tuple(sorted(board.decode)),
        lanes=board.lanes,
        max_seq_len=board.context_tokens,
        vocab_size=board.vocab_size,
        kv_bytes_per_token=board.kv_token_bytes,
        prefill=_time(board.prefill.base_s, board.prefill.token_s, board.prefill.pair_s),
        decode={
            batch: _time(curve.base_s, curve.lane_s, curve.context_token_s) for batch, curve in board.decode.items()
        },
    )


def _time(base_s: float, unit_s: float, pair_s: float) -> StepTime:
    return StepTime(round(base_s * 1e9), round(unit_s * 1e9), round(pair_s * 1e12))


# ---- golden -------------------------------------------------------------------------------------------


def _take_recording(recording: Path, directory: Path) -> None:
    """Put a recording that was made elsewhere into the package."""
    path = recording / golden.GOLDEN_FILE
    found = manifest_json.structure(manifest_json.read(path), golden.GoldenRecording, path)
    golden.load(directory, golden.save(directory, Manifest.load(directory), found.sequences))


def _record_emulated(directory: Path) -> None:
    """What the emulator says follows from the history alone: the emulated board in Python says the same."""
    from calculet_trio.core.jobs import EngineId
    from calculet_trio.runtimes import port_golden
    from calculet_trio.runtimes.emulated import EmulatedRuntime
    from calculet_trio.runtimes.pace import VirtualPace

    manifest = Manifest.load(directory)
    runtime = EmulatedRuntime(_timeless_board(manifest), VirtualPace(lambda: 0.0))
    runtime.open()
    runtime.configure(GENERATION, directory)
    run = port_golden.GoldenRun(runtime, GENERATION, runtime.inspect(GENERATION).shape, EngineId.PING)
    golden.save(directory, manifest, port_golden.record(run, manifest))


def _timeless_board(manifest: Manifest) -> DeviceModel:
    from calculet_trio.runtimes.device_model import StepCurve, load_device

    return load_device(
        lanes=manifest.kv.lanes,
        context_tokens=manifest.kv.max_seq,
        vocab_size=manifest.architecture.vocab_size,
        decode={profile.compiled_batch: StepCurve(0.0) for profile in manifest.profiles},
    )


def _record_on_board(directory: Path) -> None:
    runtime = board_runtime(accept_untried=True)  # recording is not serving: what is served is checked then
    runtime.open()
    try:
        runtime.configure(GENERATION, directory)
        sequences = runtime.record_golden(GENERATION)
    finally:
        runtime.close()
    golden.save(directory, Manifest.load(directory), sequences)
