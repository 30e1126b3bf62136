"""Checks of the group Board, on recorded trees and on trees that are changed in one place."""

from __future__ import annotations

from pathlib import Path

import attrs
import pytest

from calculet_trio.doctor.account import Account
from calculet_trio.doctor.check import Group
from calculet_trio.doctor.finding import Mark
from calculet_trio.doctor.host_tree import HostTree
from calculet_trio.doctor.registry import CHECKS
from calculet_trio.doctor.surroundings import Surroundings
from calculet_trio.packages.manifest_parts import DeviceBinary
from calculet_trio.packages.store import Store
from tests.doctor.recorded import assert_found, copy_of, remove, surroundings, write
from tests.packages.tiny_package import write_package

BOARD_CHECKS = [check.name for check in CHECKS if check.group is Group.BOARD]
AT = "sys/bus/pci/devices/0000:01:00.0"
MODULE = "sys/module/calculet_pci"


@pytest.fixture
def board(tmp_path: Path) -> HostTree:
    return copy_of("board", tmp_path)


@pytest.fixture
def around(board: HostTree, tmp_path: Path) -> Surroundings:
    return surroundings(board, tmp_path)


@pytest.mark.parametrize("tree", ["board", "no_board"])
@pytest.mark.parametrize("name", BOARD_CHECKS)
def test_a_right_board_and_no_board_are_both_well(tmp_path: Path, tree: str, name: str) -> None:
    assert_found(name, surroundings(copy_of(tree, tmp_path), tmp_path), Mark.OK)


@pytest.mark.parametrize("name", BOARD_CHECKS)
def test_an_empty_tree_is_a_host_without_a_board(tmp_path: Path, name: str) -> None:
    assert_found(name, surroundings(HostTree(tmp_path), tmp_path), Mark.OK)


# ---- pci ------------------------------------------------------------------------------------------------


def test_pci_names_the_boards_address(around: Surroundings) -> None:
    assert_found("pci", around, Mark.OK, "1 board", "0000:01:00.0")


def test_no_board_means_the_cpu(tmp_path: Path) -> None:
    assert_found("pci", surroundings(copy_of("no_board", tmp_path), tmp_path), Mark.OK, "20f5:c001", "CPU")


def test_a_board_that_is_gone_is_a_failure(tmp_path: Path) -> None:
    gone = copy_of("board_gone", tmp_path)
    assert_found("pci", surroundings(gone, tmp_path), Mark.FAILURE, "/dev/calculet0", "/sys/module/calculet_pci")


def test_two_boards_are_told(board: HostTree, around: Surroundings) -> None:
    write(board, "sys/bus/pci/devices/0000:02:00.0/vendor", "0x20f5\n")
    write(board, "sys/bus/pci/devices/0000:02:00.0/device", "0xc001\n")
    assert_found("pci", around, Mark.WARNING, "2 boards", "0000:02:00.0")


def test_an_unknown_device_of_the_vendor_is_told(board: HostTree, around: Surroundings) -> None:
    write(board, f"{AT}/device", "0xc002\n")
    assert_found("pci", around, Mark.WARNING, "0xc002")


# ---- link -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("speed", "width", "seen"),
    [
        ("8.0 GT/s PCIe", "4", "Gen3 x4 (8 GT/s)"),
        ("16.0 GT/s PCIe", "2", "Gen4 x2 (16 GT/s)"),
        ("Unknown", "4", "unknown"),
        ("16.0 GT/s PCIe", "", "unknown"),
    ],
)
def test_a_link_that_is_not_what_it_can_be(
    board: HostTree, around: Surroundings, speed: str, width: str, seen: str
) -> None:
    write(board, f"{AT}/current_link_speed", speed)
    write(board, f"{AT}/current_link_width", width)
    assert_found("link", around, Mark.WARNING, seen)


def test_a_right_link(around: Surroundings) -> None:
    assert_found("link", around, Mark.OK, "Gen4 x4 (16 GT/s)")


def test_a_link_the_kernel_does_not_tell(board: HostTree, around: Surroundings) -> None:
    remove(board, f"{AT}/current_link_speed")
    assert_found("link", around, Mark.WARNING, "unknown")


# ---- driver ---------------------------------------------------------------------------------------------


def test_a_board_without_its_driver_is_a_failure(board: HostTree, around: Surroundings) -> None:
    remove(board, MODULE)
    assert_found("driver", around, Mark.FAILURE, "calculet_pci is not loaded")


def test_another_driver_is_a_warning(tmp_path: Path) -> None:
    today = copy_of("board_today", tmp_path)
    assert_found("driver", surroundings(today, tmp_path), Mark.WARNING, "0.9.2", "1.0.0")


def test_a_driver_without_a_version_is_a_warning(board: HostTree, around: Surroundings) -> None:
    remove(board, f"{MODULE}/version")
    assert_found("driver", around, Mark.WARNING, "does not say")


@pytest.mark.parametrize("timeout_ms", ["60000", "120000", "0", "-1", "soon"])
def test_a_transfer_that_outlives_its_job_is_a_warning(board: HostTree, around: Surroundings, timeout_ms: str) -> None:
    write(board, f"{MODULE}/parameters/dma_timeout_ms", timeout_ms)
    assert_found("dma-timeout", around, Mark.WARNING)


def test_a_transfer_that_ends_before_its_job_is_well(board: HostTree, around: Surroundings) -> None:
    write(board, f"{MODULE}/parameters/dma_timeout_ms", "59999\n")
    assert_found("dma-timeout", around, Mark.OK, "59,999 ms", "60,000 ms")


# ---- the node -------------------------------------------------------------------------------------------


def test_a_node_that_everybody_may_use_is_a_warning(tmp_path: Path) -> None:
    today = copy_of("board_today", tmp_path)
    assert_found("device-node", surroundings(today, tmp_path), Mark.WARNING, "/dev/calculet0", "0666")


@pytest.mark.parametrize("mode", [0o664, 0o662])
def test_a_node_that_others_may_read_or_write_is_a_warning(board: HostTree, around: Surroundings, mode: int) -> None:
    (board.root / "dev/calculet0").chmod(mode)
    assert_found("device-node", around, Mark.WARNING, f"{mode:04o}")


def test_a_node_that_the_account_may_not_use_is_a_failure(board: HostTree, around: Surroundings) -> None:
    stranger = Account(name="ann", uid=4803, gids=frozenset(), groups=frozenset())
    assert_found("device-node", attrs.evolve(around, account=stranger), Mark.FAILURE, "0660", "ann")


def test_a_board_without_a_node_is_a_failure(board: HostTree, around: Surroundings) -> None:
    remove(board, "dev/calculet0")
    assert_found("device-node", around, Mark.FAILURE, "no /dev/calculet0")


def test_a_node_that_is_no_device_is_a_failure(board: HostTree, around: Surroundings) -> None:
    remove(board, "dev/calculet0")
    (board.root / "dev/calculet0").mkdir()  # what a container engine makes of a mount whose source is missing
    assert_found("device-node", around, Mark.FAILURE, "not a device")


def test_every_node_is_looked_at(board: HostTree, around: Surroundings) -> None:
    write(board, "dev/calculet1", "another")
    (board.root / "dev/calculet1").chmod(0o666)
    write(board, "dev/calculet_log", "of another kind")
    (board.root / "dev/calculet_log").chmod(0o666)
    assert_found("device-node", around, Mark.WARNING, "/dev/calculet1")


def test_ones_own_access_is_the_kernels_word(monkeypatch: pytest.MonkeyPatch, around: Surroundings) -> None:
    from calculet_trio.doctor.board import device_node

    asked: list[str] = []

    def access(path: str, _mode: int) -> bool:
        asked.append(path)
        return False

    monkeypatch.setattr("os.access", access)
    live = attrs.evolve(around, tree=HostTree(), account=Account.own(HostTree()))
    status = around.tree.status("dev/calculet0")
    assert status is not None
    assert not device_node._may_use(live, "calculet0", status)
    assert asked == ["/dev/calculet0"]
    assert device_node._may_use(around, "calculet0", status)


# ---- who has it open ------------------------------------------------------------------------------------


def test_our_own_service_may_hold_the_board(around: Surroundings) -> None:
    assert_found("device-holder", around, Mark.OK, "calculet-trio (pid 812)")


def test_another_program_that_holds_the_board_is_a_failure(tmp_path: Path) -> None:
    today = copy_of("board_today", tmp_path)
    assert_found("device-holder", surroundings(today, tmp_path), Mark.FAILURE, "llama-server (pid 4711)")


def test_a_board_that_nobody_holds(board: HostTree, around: Surroundings) -> None:
    remove(board, "proc/812/fd/9")
    (board.root / "proc/812/fd/9").symlink_to("/dev/null")
    assert_found("device-holder", around, Mark.OK, "no program")


# ---- the library ----------------------------------------------------------------------------------------


def test_several_libraries_are_a_warning(tmp_path: Path) -> None:
    today = copy_of("board_today", tmp_path)
    assert_found("calrt-library", surroundings(today, tmp_path), Mark.WARNING, "so.0.7.5", "so.0.7.6")


def test_no_library_is_a_warning(board: HostTree, around: Surroundings) -> None:
    remove(board, "usr/local/lib/libcalrt-linux-x86_64.so.0.7.6")
    assert_found("calrt-library", around, Mark.WARNING, "no libcalrt")


def test_the_library_is_found_where_distributions_put_it(board: HostTree, around: Surroundings) -> None:
    remove(board, "usr/local/lib/libcalrt-linux-x86_64.so.0.7.6")
    write(board, "usr/lib/libcalrt-linux-x86_64.so.0.7.6", "stands for the library")
    write(board, "usr/lib/libcalrt-linux-x86_64.so", "the development link")
    assert_found("calrt-library", around, Mark.OK, "/usr/lib/libcalrt-linux-x86_64.so.0.7.6")


# ---- compatibility --------------------------------------------------------------------------------------


def with_package(around: Surroundings, **binary: object) -> Surroundings:
    """A package for the board in the store; ``binary`` is what its calbin says of itself."""
    store = Store(around.store.root)
    with store.staging() as scratch:
        manifest = write_package(scratch / "built", "q")
        made = DeviceBinary(**{"version": "0.1", "compiler": "", "calcore_rt": "", "shards": (), **binary})
        attrs.evolve(manifest, target="calculet", binary=made).save(scratch / "built")
        store.install(scratch / "built")
    return around


def test_what_was_seen_together_is_well(around: Surroundings) -> None:
    assert_found("compatibility", with_package(around), Mark.OK, "1 for the board", "seen together")


def test_a_calbin_of_another_schema_is_told(around: Surroundings) -> None:
    found = with_package(around, version="0.2")
    assert_found("compatibility", found, Mark.WARNING, "q: ", "never tried", "calbin_schema 0.2", "(tried was")


def test_another_driver_under_a_package_is_told(board: HostTree, around: Surroundings) -> None:
    write(board, f"{MODULE}/version", "2.0.0\n")
    assert_found("compatibility", with_package(around), Mark.WARNING, "driver 2.0.0", "(tried was driver 1.0.0)")
