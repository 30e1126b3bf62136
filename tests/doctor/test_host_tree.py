"""A tree is read below its root and nowhere else, and what cannot be read is not there."""

from __future__ import annotations

from pathlib import Path

import pytest

from calculet_trio.doctor.host_tree import FILE_BYTES_MAX, HostTree


@pytest.fixture
def tree(tmp_path: Path) -> HostTree:
    (tmp_path / "root" / "etc").mkdir(parents=True)
    (tmp_path / "root" / "etc" / "name").write_text(" ann \n")
    (tmp_path / "secret").write_text("outside")
    return HostTree(tmp_path / "root")


def test_text_names_and_status(tree: HostTree) -> None:
    assert tree.text("etc/name") == "ann"
    assert tree.lines("etc/name") == ["ann"]
    assert tree.names("etc") == ["name"]
    assert tree.exists("etc/name")


@pytest.mark.parametrize("path", ["etc/none", "etc", "none/none", "etc/name/below"])
def test_what_cannot_be_read_is_not_there(tree: HostTree, path: str) -> None:
    assert tree.text(path) is None
    assert tree.lines(path) == []
    assert tree.names("etc/name") == []
    assert tree.link(path) is None


@pytest.mark.parametrize("target", ["../../secret", "absolute"])
def test_links_do_not_lead_out_of_a_recorded_tree(tree: HostTree, target: str) -> None:
    link = tree.root / "etc" / "link"
    link.symlink_to(tree.root.parent / "secret" if target == "absolute" else target)
    assert link.read_text() == "outside"
    assert tree.text("etc/link") is None
    assert not tree.exists("etc/link")
    assert tree.link("etc/link") is not None


def test_a_directory_behind_a_link_is_not_left_either(tree: HostTree) -> None:
    (tree.root / "out").symlink_to(tree.root.parent)
    assert tree.names("out") == []
    assert tree.link("out/anything") is None


def test_links_within_the_tree_are_followed(tree: HostTree) -> None:
    (tree.root / "etc" / "link").symlink_to("name")
    assert tree.text("etc/link") == "ann"


def test_no_more_than_the_bound_is_read(tree: HostTree) -> None:
    (tree.root / "etc" / "name").write_bytes(b"x" * (FILE_BYTES_MAX + 10))
    assert len(tree.text("etc/name") or "") == FILE_BYTES_MAX


def test_bytes_that_are_no_text_are_replaced(tree: HostTree) -> None:
    (tree.root / "etc" / "name").write_bytes(b"a\xff")
    assert tree.text("etc/name") == "a\ufffd"


def test_a_file_stands_for_a_device_in_a_recorded_tree_alone(tree: HostTree) -> None:
    file = tree.status("etc/name")
    directory = tree.status("etc")
    assert file is not None
    assert directory is not None
    assert tree.is_device(file)
    assert not tree.is_device(directory)
    assert not HostTree().is_device(file)
    assert HostTree().is_device(Path("/dev/null").stat())


def test_the_default_is_this_machine() -> None:
    assert HostTree().is_live
    assert HostTree().text("proc/self/comm")
