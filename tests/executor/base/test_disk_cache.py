"""The disk cache gives back what was stored or nothing: never damaged bytes, never more than its limit."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from executor.base.disk_cache import STALE_SECONDS, DiskCache, trim


@pytest.fixture
def cache(tmp_path: Path) -> DiskCache:
    return DiskCache(tmp_path / "kernels", 10_000)


def entry(cache: DiskCache) -> Path:
    (path,) = cache.folder.glob("*.bin")
    return path


def test_what_was_stored_comes_back(cache: DiskCache) -> None:
    cache.put("a", b"machine code")
    cache.put("empty", b"")
    assert (cache.get("a"), cache.get("empty"), cache.get("b")) == (b"machine code", b"", None)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60, deadline=None)
@given(data=st.data())
def test_damage_at_any_byte_is_noticed_and_the_entry_goes(cache: DiskCache, data: st.DataObject) -> None:
    cache.put("a", b"machine code")
    path = entry(cache)
    content = bytearray(path.read_bytes())
    at = data.draw(st.integers(0, len(content) - 1))
    content[at] ^= data.draw(st.integers(1, 255))
    path.write_bytes(content)
    assert cache.get("a") is None
    assert not path.exists()
    cache.put("a", b"machine code")
    assert cache.get("a") == b"machine code"


def test_truncation_at_any_byte_is_noticed(cache: DiskCache) -> None:
    cache.put("a", b"machine code")
    path = entry(cache)
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        assert cache.get("a") is None
    assert cache.corrupt == len(whole)


def test_an_entry_under_another_entrys_name_is_noticed(cache: DiskCache) -> None:
    cache.put("a", b"code of a")
    content = entry(cache).read_bytes()
    cache.put("b", b"code of b")
    for path in cache.folder.glob("*.bin"):
        path.write_bytes(content)
    assert (cache.get("a"), cache.get("b")) == (b"code of a", None)


def test_the_entry_used_least_recently_goes_first(cache: DiskCache) -> None:
    for age, key in enumerate("abc"):
        cache.put(key, key.encode() * 3000)
        os.utime(max(cache.folder.iterdir(), key=lambda path: path.stat().st_mtime), (1000 + age, 1000 + age))
    assert cache.get("a") is not None  # used now, so b is the oldest
    cache.put("d", b"d" * 3000)
    assert [key for key in "abcd" if cache.get(key) is None] == ["b"]


def test_the_cache_stays_below_its_limit(cache: DiskCache) -> None:
    for i in range(30):
        cache.put(str(i), bytes(1000))
    assert sum(path.stat().st_size for path in cache.folder.iterdir()) <= 10_000


def test_what_is_larger_than_the_cache_is_not_stored(cache: DiskCache) -> None:
    cache.put("a", b"a")
    cache.put("big", bytes(20_000))
    assert (cache.get("a"), cache.get("big")) == (b"a", None)


def test_rests_of_dead_processes_are_removed_and_those_of_the_living_are_not(cache: DiskCache) -> None:
    cache.put("a", b"a")
    old, new = cache.folder / "x.tmp", cache.folder / "y.tmp"
    old.touch()
    new.touch()
    os.utime(old, (0, old.stat().st_mtime - 2 * STALE_SECONDS))
    trim(cache.folder, 10_000)
    assert (old.exists(), new.exists()) == (False, True)


def test_a_folder_that_cannot_be_written_is_reported_and_not_used(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("in the way")
    cache = DiskCache(tmp_path / "file" / "kernels", 10_000)
    cache.put("a", b"a")
    cache.put("b", b"b")
    assert cache.get("a") is None
    assert [record.message.startswith("compiled kernels cannot be kept in") for record in caplog.records] == [True]


WRITER = """
import sys
from pathlib import Path
from executor.base.disk_cache import DiskCache
cache = DiskCache(Path(sys.argv[1]), 60_000)
for turn in range(150):
    for key in "abcdef":
        found = cache.get(key)
        assert found in (None, key.encode() * 20_000), "another process's bytes"
        if found is None or turn % 3 == 0:
            cache.put(key, key.encode() * 20_000)
assert cache.corrupt == 0
"""


def test_two_processes_that_write_and_evict_at_once_never_see_half_an_entry(tmp_path: Path) -> None:
    commands = [sys.executable, "-c", WRITER, str(tmp_path / "kernels")]
    processes = [subprocess.Popen(commands, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    for process in processes:
        _, errors = process.communicate(timeout=240)
        assert process.returncode == 0, errors
