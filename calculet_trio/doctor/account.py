"""The account that the service runs as, and what it may do."""

from __future__ import annotations

import os
import pwd
import stat
from pathlib import Path
from typing import Final

import attrs

from calculet_trio.doctor.host_tree import HostTree

ROOT_UID: Final = 0


@attrs.frozen(kw_only=True)
class Account:
    """A user of the host.

    Args:
        name: the login name, or the number where there is none.
        uid: None if the host's ``/etc/passwd`` does not know the name.
        gids: every group, by number.
        groups: every group that has a name.
        home: its directory; None if nobody knows it.
    """

    name: str
    uid: int | None
    gids: frozenset[int]
    groups: frozenset[str]
    home: str | None = None

    @property
    def is_root(self) -> bool:
        return self.uid == ROOT_UID

    def may_use(self, status: os.stat_result) -> bool:
        """Whether the mode lets this account read and write, as the kernel decides it: the first class that fits."""
        if self.is_root:
            return True
        if status.st_uid == self.uid:
            needed = stat.S_IRUSR | stat.S_IWUSR
        elif status.st_gid in self.gids:
            needed = stat.S_IRGRP | stat.S_IWGRP
        else:
            needed = stat.S_IROTH | stat.S_IWOTH
        return status.st_mode & needed == needed

    @classmethod
    def named(cls, name: str, tree: HostTree) -> Account:
        """The account of that name, by the host's own ``/etc/passwd`` and ``/etc/group``."""
        uid = primary = home = None
        for line in tree.lines("etc/passwd"):
            fields = line.split(":")
            if fields[0] == name and len(fields) > 3 and fields[2].isdecimal() and fields[3].isdecimal():
                uid, primary = int(fields[2]), int(fields[3])
                home = fields[5] if len(fields) > 5 else None
        found = cls._in_groups(name, uid, set() if primary is None else {primary}, tree)
        return attrs.evolve(found, home=home)

    @classmethod
    def own(cls, tree: HostTree) -> Account:
        """The account of this process; on a recorded tree, the one that has its name there."""
        uid = os.getuid()
        try:
            name = pwd.getpwuid(uid).pw_name
        except KeyError:  # a container may run as a number that nobody named
            name = str(uid)
        if not tree.is_live:
            return cls.named(name, tree)
        # A directory service's accounts stand in no file; the kernel knows this process's groups in any case.
        found = cls._in_groups(name, uid, {os.getgid(), *os.getgroups()}, tree)
        return attrs.evolve(found, home=str(Path.home()))

    @classmethod
    def _in_groups(cls, name: str, uid: int | None, gids: set[int], tree: HostTree) -> Account:
        groups: set[str] = set()
        for line in tree.lines("etc/group"):
            fields = line.split(":")
            if len(fields) > 3 and fields[2].isdecimal() and (int(fields[2]) in gids or name in fields[3].split(",")):
                gids.add(int(fields[2]))
                groups.add(fields[0])
        return cls(name=name, uid=uid, gids=frozenset(gids), groups=frozenset(groups))
