"""Files that are there whole or not at all, and what is believed of those that are there."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ptxgen.errors import ArgumentError
from ptxgen.files import private_folder, read_regular, read_text, replacing


def test_a_writer_that_fails_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")

    def write_half() -> None:
        with replacing(path) as stream:
            stream.write(b"new")
            raise KeyError

    with pytest.raises(KeyError):
        write_half()
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_new_file_has_the_permissions_of_any_other(tmp_path: Path) -> None:
    with replacing(tmp_path / "new") as stream:
        stream.write(b"new")
    (tmp_path / "plain").write_bytes(b"")
    assert (tmp_path / "new").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "target")
    with replacing(tmp_path / "link") as stream:
        stream.write(b"new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "target").read_bytes() == b"new"


def test_a_pipe_is_written_to_and_stays_a_pipe(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        with replacing(pipe) as stream:
            stream.write(b"new")
        assert os.read(reader, 10) == b"new"
        assert pipe.is_fifo()
    finally:
        os.close(reader)


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="no/file: cannot be written: No such file"), replacing(tmp_path / "no" / "file"):
        pass


def stranger(path: Path) -> bool:
    """Give a path to another user, where the tests may do that."""
    if os.geteuid() != 0:
        return False
    os.chown(path, 4242, 4242, follow_symlinks=False)
    return True


def test_a_regular_file_of_a_sane_size_is_read(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"12345")
    (tmp_path / "link").symlink_to("file")
    assert read_regular(tmp_path / "file", 5, own=True) == read_regular(tmp_path / "link", 5) == b"12345"


def test_what_is_no_file_of_a_sane_size_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with (tmp_path / "large").open("wb") as stream:
        stream.truncate(20 << 30)  # takes no room on the disk
    refused = {
        "pipe": "not a regular file",
        "": "not a regular file",
        "large": f"it has {20 << 30} bytes; at most 100 are read",
        "none": "No such file",
        "a\0b": "not a possible file name",
        "\ud800": "not a possible file name",
        "/dev/zero": "not a regular file",
        "/proc/self/smaps": "at most 100 are read",  # says that it has no bytes
    }
    for name, why in refused.items():
        with pytest.raises(OSError, match=why):
            read_regular(tmp_path / name, 100)


def test_what_others_can_have_written_is_not_ones_own(tmp_path: Path) -> None:
    for name in ("open", "mine", "theirs"):
        (tmp_path / name).write_bytes(b"code")
    (tmp_path / "open").chmod(0o622)
    (tmp_path / "link").symlink_to("mine")
    refused = {"open": "others may write to it .mode 0622.", "link": "it is a symbolic link"}
    if stranger(tmp_path / "theirs"):
        refused["theirs"] = "it belongs to user 4242, and this is user 0"
    for name, why in refused.items():
        assert read_regular(tmp_path / name, 100) == b"code"
        with pytest.raises(OSError, match=why):
            read_regular(tmp_path / name, 100, own=True)


def test_a_private_folder_is_made_for_the_user_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        made = private_folder(tmp_path / "cache", "kernels", "emulator")
    finally:
        os.umask(before)
    assert made == tmp_path / "cache" / "kernels" / "emulator"
    assert [path.stat().st_mode & 0o777 for path in (made, made.parent, made.parent.parent)] == [0o700] * 3
    assert private_folder(tmp_path / "cache", "kernels", "emulator") == made


@pytest.mark.parametrize("spoilt", ["cache", "cache/kernels", "cache/kernels/emulator"])
def test_a_folder_of_others_on_the_way_is_refused(tmp_path: Path, spoilt: str) -> None:
    private_folder(tmp_path / "cache", "kernels", "emulator")
    (tmp_path / spoilt).chmod(0o1777)
    with pytest.raises(PermissionError, match=r"others may write to it \(mode 1777\)"):
        private_folder(tmp_path / "cache", "kernels", "emulator")
    (tmp_path / spoilt).chmod(0o755)
    assert private_folder(tmp_path / "cache", "kernels", "emulator").is_dir()
    if stranger(tmp_path / spoilt):
        with pytest.raises(PermissionError, match="it belongs to user 4242"):
            private_folder(tmp_path / "cache", "kernels", "emulator")


def test_a_link_below_the_folder_that_the_user_named_is_refused(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "cache").mkdir(0o700)
    (tmp_path / "cache" / "kernels").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(NotADirectoryError, match="symbolic link"):
        private_folder(tmp_path / "cache", "kernels", "emulator")
    (tmp_path / "named").symlink_to(tmp_path / "cache")
    assert private_folder(tmp_path / "named", "tuning").is_dir()


def test_text_is_utf_8_and_is_refused_with_its_path(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("z\u00fc\r\n", encoding="utf-8", newline="")
    assert read_text(tmp_path / "text", 5) == "z\u00fc\r\n"
    (tmp_path / "bytes").write_bytes(b"ab\xff")
    os.mkfifo(tmp_path / "pipe")
    refused = {
        "bytes": "bytes is not UTF-8: byte 2",
        "pipe": "pipe: cannot be read: it is not a regular file",
        "none": "none: cannot be read: No such file",
        "text": "text: cannot be read: it has 5 bytes; at most 4 are read",
    }
    for name, why in refused.items():
        with pytest.raises(ArgumentError, match=why):
            read_text(tmp_path / name, 4)
