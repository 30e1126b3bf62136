"""Boots a systemd in new namespaces, with a user manager that has our unit, and runs the scenarios in it.

    outside    makes a cgroup of its own, unshares everything, waits, cleans up
    boot       becomes process 1 of the namespaces: the root is read-only, /run new; then it is systemd
    drive      joins the namespaces and runs tools/systemd_scenarios.py

Nothing outside is touched: the network, the processes, the cgroups and every mount are the lab's own, and it
writes to a tmpfs. Called by tools/systemd_lab.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SYSTEMD = Path("/usr/lib/systemd/systemd")
LAB = Path("/run/lab")
BOOT_S = 60
SCENARIOS_S = 600
UNAVAILABLE = 69

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = 1, 2, 4, 32, 4096, 16384, 1 << 18

ENVIRONMENT = {
    "HOME": str(LAB / "home"),
    "XDG_RUNTIME_DIR": str(LAB / "user"),
    "TMPDIR": str(LAB / "tmp"),
    "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
    "LANG": "C.UTF-8",
    "PYTHONDONTWRITEBYTECODE": "1",
}

UNITS = {
    "lab.target": "[Unit]\nDefaultDependencies=no\nAllowIsolate=yes\nRequires=lab-user.service\n",
    "lab-user.service": "\n".join(
        [
            "[Unit]",
            "DefaultDependencies=no",
            "[Service]",
            "Type=notify",
            f"ExecStart={SYSTEMD} --user --unit=basic.target",
            "Environment=" + " ".join(f"{name}={value}" for name, value in ENVIRONMENT.items()),
            "StandardOutput=append:/run/lab/user-manager.log",
            "StandardError=inherit",
            "Delegate=yes",
            "KillMode=mixed",
            "",
        ]
    ),
}

DROP_IN = f"""
[Service]
# Short times, so that the lab is over soon; everything else is the unit as it is installed.
TimeoutStartSec=12
WatchdogSec=6
TimeoutStopSec=40
RestartSec=1
LimitCORE=0
StandardOutput=append:{LAB}/service.log
StandardError=inherit
Environment=PYTHONDONTWRITEBYTECODE=1
"""


# ---- outside ------------------------------------------------------------------------------------


def main() -> int:
    """Run one of the three parts."""
    if sys.argv[1:2] == ["boot"]:
        boot()
    if sys.argv[1:2] == ["drive"]:
        import systemd_scenarios

        return systemd_scenarios.run(short="--short" in sys.argv)
    if sys.argv[1:] not in ([], ["--short"]):
        print(f"error: unknown arguments {sys.argv[1:]}; there is --short", file=sys.stderr)
        return 2
    lacking = what_is_lacking()
    if lacking is not None:
        print(f"SKIP: the lab needs {lacking}")
        return UNAVAILABLE
    return outside(sys.argv[1:])


def what_is_lacking() -> str | None:
    """The first thing that the lab needs and this machine does not have; None if it has all."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "root on Linux"
    for program in (str(SYSTEMD), "systemctl", "unshare", "nsenter", "setpriv"):
        if shutil.which(program) is None:
            return f"{program} (Debian packages systemd and util-linux)"
    if cgroup2() is None:
        return "a mounted cgroup2 file system"
    probe = subprocess.run(
        ["unshare", *NAMESPACES, "true"], capture_output=True, text=True, timeout=BOOT_S, check=False
    )
    return f"new namespaces ({probe.stderr.strip()})" if probe.returncode else None


NAMESPACES = ("--mount", "--pid", "--fork", "--uts", "--ipc", "--net", "--cgroup")


def cgroup2() -> Path | None:
    """Where the unified cgroup hierarchy is mounted."""
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, where, kind, *_ = line.split()
        if kind == "cgroup2":
            return Path(where)
    return None


def outside(arguments: list[str]) -> int:
    """Boot, drive, and leave nothing behind."""
    mount = cgroup2()
    assert mount is not None
    cgroup = mount / f"calculet-lab-{os.getpid()}"
    cgroup.mkdir()
    script = 'echo $$ > "$0/cgroup.procs" && exec unshare "$@"'
    command = [
        "setpriv",
        "--pdeathsig=KILL",
        "sh",
        "-c",
        script,
        cgroup,
        *NAMESPACES,
        "--kill-child",
        sys.executable,
        __file__,
        "boot",
    ]
    print("booting systemd in new namespaces …", flush=True)
    with subprocess.Popen(command, stdin=subprocess.DEVNULL) as lab:
        try:
            init = wait_for_init(lab)
            inside = ["nsenter", f"--target={init}", "--mount", "--pid", "--uts", "--ipc", "--net", "--cgroup"]
            inside += [sys.executable, __file__, "drive", *arguments]
            return subprocess.run(inside, timeout=SCENARIOS_S, check=False, env=ENVIRONMENT).returncode
        except (TimeoutError, subprocess.TimeoutExpired) as error:
            print(f"FAIL: {error}")
            return 1
        finally:
            lab.kill()  # and with it, by --kill-child, process 1 of the lab, and with that everything in it
            lab.wait()
            remove(cgroup)


def wait_for_init(lab: subprocess.Popen[bytes]) -> int:
    """The lab's process 1, as it is called outside, once it is systemd."""
    children = Path(f"/proc/{lab.pid}/task/{lab.pid}/children")
    deadline_s = time.monotonic() + BOOT_S
    while time.monotonic() < deadline_s:
        if lab.poll() is not None:
            raise TimeoutError(f"the lab ended while it was booting, with {lab.returncode}")
        for child in children.read_text().split():
            if Path(f"/proc/{child}/comm").read_text().strip() == "systemd":
                return int(child)
        time.sleep(0.05)
    raise TimeoutError(f"no systemd within {BOOT_S} s")


def remove(cgroup: Path) -> None:
    """Remove the emptied cgroup and those that systemd made in it; what was killed takes a moment to leave."""
    deadline_s = time.monotonic() + BOOT_S
    while cgroup.exists() and time.monotonic() < deadline_s:
        for directory, _, _ in os.walk(cgroup, topdown=False):
            try:
                Path(directory).rmdir()
            except OSError:
                time.sleep(0.05)


# ---- boot ---------------------------------------------------------------------------------------


def boot() -> None:
    """Arrange the mounts, write the units, and become systemd."""
    mount(None, "/", None, MS_REC | MS_PRIVATE)
    mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV)
    mount(None, "/", None, MS_REMOUNT | MS_BIND | MS_RDONLY)
    mount("tmpfs", "/run", "tmpfs", MS_NOSUID | MS_NODEV)
    mount("cgroup2", "/sys/fs/cgroup", "cgroup2", MS_NOSUID | MS_NODEV)
    home, units = LAB / "home", Path("/run/systemd/system")
    service = home / ".config" / "systemd" / "user"
    for directory in (units, LAB / "user", LAB / "tmp", service / "calculet-trio.service.d"):
        directory.mkdir(parents=True)
    for name, text in UNITS.items():
        (units / name).write_text(text)
    shutil.copy(ROOT / "systemd" / "calculet-trio.service", service)
    (service / "calculet-trio.service.d" / "lab.conf").write_text(DROP_IN)
    venv = home / ".local" / "share" / "calculet-trio" / "venv"
    venv.parent.mkdir(parents=True)
    venv.symlink_to(ROOT / ".venv")
    os.execve(
        SYSTEMD,
        ["systemd", "--system", "--unit=lab.target", "--log-level=warning", "--show-status=no"],
        {"PATH": ENVIRONMENT["PATH"], "container": "lab"},
    )


def mount(source: str | None, target: str, kind: str | None, flags: int) -> None:
    """Mount something: a call that Python does not have."""

    def encoded(text: str | None) -> bytes | None:
        return None if text is None else text.encode()

    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(encoded(source), target.encode(), encoded(kind), flags, None):
        number = ctypes.get_errno()
        raise OSError(number, f"cannot mount {kind or source} on {target}: {os.strerror(number)}")


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what was begun is cleaned up
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
