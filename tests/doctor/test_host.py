"""Checks of the group Host, and the account and memory they read."""

from __future__ import annotations

import os
from pathlib import Path

import attrs
import pytest

from calculet_trio.doctor.account import Account
from calculet_trio.doctor.finding import Mark
from calculet_trio.doctor.host.memory import Memory, memory_of, need_bytes
from calculet_trio.doctor.host_tree import HostTree
from tests.doctor.recorded import assert_found, copy_of, remove, surroundings, write
from tests.packages.tiny_package import write_package

GROUPS = "root:x:0:\nsudo:x:27:ops,ann\nann:x:4803:\nvideo:x:44:bob\nbroken line\nodd:x:many:ann\n"

# ---- memory ---------------------------------------------------------------------------------------------


def meminfo(total_bytes: int, available_bytes: int) -> str:
    return f"MemTotal: {-(-total_bytes // 1024)} kB\nMemAvailable: {-(-available_bytes // 1024)} kB\n"


def test_memory_without_packages_is_only_told(tmp_path: Path) -> None:
    assert_found("memory", surroundings(copy_of("no_board", tmp_path), tmp_path), Mark.OK, "92.3 GB of 101 GB")


def test_memory_is_compared_with_what_the_largest_model_takes(tmp_path: Path) -> None:
    tree = copy_of("no_board", tmp_path)
    around = surroundings(tree, tmp_path)
    need = need_bytes(write_package(tmp_path / "packages" / "tiny", "tiny"))
    assert need > 2048
    write(tree, "proc/meminfo", meminfo(need, need))
    assert_found("memory", around, Mark.OK, "tiny")
    write(tree, "proc/meminfo", meminfo(2 * need, need - 1024))
    assert_found("memory", around, Mark.WARNING, "tiny")
    write(tree, "proc/meminfo", meminfo(need - 1024, need - 1024))
    assert_found("memory", around, Mark.FAILURE, "tiny")


def test_a_model_needs_its_files_and_every_lane_at_full_length(tmp_path: Path) -> None:
    manifest = write_package(tmp_path / "tiny")
    files = sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file() and path.name != "manifest.json")
    assert need_bytes(manifest) == files + manifest.kv.lanes * manifest.kv.max_seq * manifest.kv.bytes_per_token


def test_a_model_for_a_board_takes_no_memory_of_the_host(tmp_path: Path) -> None:
    tree = copy_of("no_board", tmp_path)
    directory = tmp_path / "packages" / "tiny"
    attrs.evolve(write_package(directory, "tiny"), target="calculet").save(directory)
    write(tree, "proc/meminfo", meminfo(1024, 1024))
    assert_found("memory", surroundings(tree, tmp_path), Mark.OK)


def test_a_containers_limit_counts(tmp_path: Path) -> None:
    tree = HostTree(tmp_path)
    write(tree, "proc/meminfo", meminfo(8 * 2**30, 6 * 2**30))
    assert memory_of(tree) == Memory(8 * 2**30, 6 * 2**30)
    write(tree, "sys/fs/cgroup/memory.max", "max\n")
    assert memory_of(tree) == Memory(8 * 2**30, 6 * 2**30)
    write(tree, "sys/fs/cgroup/memory.max", str(2 * 2**30))
    write(tree, "sys/fs/cgroup/memory.current", str(2**30))
    assert memory_of(tree) == Memory(2 * 2**30, 2**30)
    write(tree, "sys/fs/cgroup/memory.current", str(3 * 2**30))
    assert memory_of(tree) == Memory(2 * 2**30, 0)


@pytest.mark.parametrize("text", [None, "", "MemTotal: lots kB\n", "MemTotal: 1024 kB\n"])
def test_a_kernel_that_does_not_tell_its_memory_is_a_failure(tmp_path: Path, text: str | None) -> None:
    tree = copy_of("no_board", tmp_path)
    remove(tree, "proc/meminfo")
    if text is not None:
        write(tree, "proc/meminfo", text)
    assert_found("memory", surroundings(tree, tmp_path), Mark.FAILURE, "/proc/meminfo")


# ---- account --------------------------------------------------------------------------------------------


def test_an_account_without_power_is_well(tmp_path: Path) -> None:
    assert_found("account", surroundings(copy_of("board", tmp_path), tmp_path), Mark.OK, "calculet")


def test_an_account_in_sudo_is_named_with_the_group(tmp_path: Path) -> None:
    assert_found("account", surroundings(copy_of("board_today", tmp_path), tmp_path), Mark.WARNING, "user2", "sudo")


def test_a_primary_group_counts_like_any_other(tmp_path: Path) -> None:
    tree = HostTree(tmp_path)
    write(tree, "etc/passwd", "ann:x:4803:27:Ann:/srv/ann:/bin/sh\n")
    write(tree, "etc/group", GROUPS.replace("ops,ann", "ops"))
    around = surroundings(tree, tmp_path, account=Account.named("ann", tree))
    assert_found("account", around, Mark.WARNING, "sudo")


def test_root_is_a_warning(tmp_path: Path) -> None:
    tree = copy_of("board", tmp_path)
    assert_found(
        "account", surroundings(tree, tmp_path, account=Account.named("root", tree)), Mark.WARNING, "may do everything"
    )


def test_an_account_is_read_from_the_trees_own_files(tmp_path: Path) -> None:
    tree = HostTree(tmp_path)
    write(tree, "etc/passwd", "anna:x:1:1::/:/bin/sh\nann:x:4803:4803::/:/bin/sh\nbroken\n")
    write(tree, "etc/group", GROUPS)
    assert Account.named("ann", tree) == Account(
        name="ann", uid=4803, gids=frozenset({27, 4803}), groups=frozenset({"sudo", "ann"}), home="/"
    )
    assert Account.named("nobody-here", tree) == Account(
        name="nobody-here", uid=None, gids=frozenset(), groups=frozenset()
    )


def test_ones_own_account_is_the_kernels(tmp_path: Path) -> None:
    own = Account.own(HostTree())
    assert own.uid == os.getuid()
    assert own.gids >= {os.getgid(), *os.getgroups()}
    assert Account.own(HostTree(tmp_path)).gids == frozenset()


@pytest.mark.parametrize(
    ("mode", "uid", "gids", "may"),
    [
        (0o600, "owner", set(), True),
        (0o060, "owner", {"group"}, False),  # the owner's bits decide for the owner, and they are empty
        (0o060, 4803, {"group"}, True),
        (0o040, 4803, {"group"}, False),
        (0o606, 4803, {"group"}, False),
        (0o006, 4803, set(), True),
        (0o660, 4803, set(), False),
        (0o000, 0, set(), True),
        (0o660, None, set(), False),
    ],
)
def test_modes_decide_as_the_kernel_does(
    tmp_path: Path, mode: int, uid: int | str | None, gids: set[str], may: bool
) -> None:
    file = tmp_path / "node"
    file.touch()
    os.chown(file, 4801, os.getgid()) if os.getuid() == 0 else None
    file.chmod(mode)
    status = file.stat()
    if uid == "owner" and status.st_uid == 0:
        pytest.skip("root owns the file and may do anything")
    account = Account(
        name="x",
        uid=status.st_uid if uid == "owner" else uid,  # type: ignore[arg-type]
        gids=frozenset({status.st_gid} if gids else set()),
        groups=frozenset(),
    )
    assert account.may_use(status) is may


# ---- linger ---------------------------------------------------------------------------------------------


def test_linger_on_and_off(tmp_path: Path) -> None:
    assert_found("linger", surroundings(copy_of("board", tmp_path), tmp_path), Mark.OK, "calculet")
    assert_found("linger", surroundings(copy_of("board_today", tmp_path), tmp_path), Mark.WARNING, "user2", "off")


def test_linger_of_another_user_does_not_count(tmp_path: Path) -> None:
    tree = copy_of("board", tmp_path)
    (tree.root / "var/lib/systemd/linger/calculet").rename(tree.root / "var/lib/systemd/linger/ann")
    assert_found("linger", surroundings(tree, tmp_path), Mark.WARNING)


def test_without_systemd_nothing_lingers(tmp_path: Path) -> None:
    tree = copy_of("board_today", tmp_path)
    remove(tree, "run/systemd")
    assert_found("linger", surroundings(tree, tmp_path), Mark.OK, "does not run here")


def test_root_needs_no_linger(tmp_path: Path) -> None:
    tree = copy_of("board", tmp_path)
    assert_found("linger", surroundings(tree, tmp_path, account=Account.named("root", tree)), Mark.OK, "root")
