"""Compiled programs are kept in folders that are the user's alone; without one, each process compiles for itself."""

import grp
import os
import pwd
import stat
import tempfile
from types import SimpleNamespace

import pytest

from roundoff import caches
from roundoff.caches import CacheWarning, cache_folder


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A user with a home and a temporary directory."""
    for name in ("home", "tmp"):
        (tmp_path / name).mkdir()
    (tmp_path / "tmp").chmod(0o1777)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    caches.advise.cache_clear()
    yield tmp_path / "home"
    caches.advise.cache_clear()


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def test_it_is_made_in_the_users_own_cache_and_closed_to_others(home, monkeypatch):
    before = os.umask(0)
    try:
        folder = cache_folder("loops")
    finally:
        os.umask(before)
    assert folder == home / ".cache/roundoff/loops"
    assert [mode(path) for path in (folder, folder.parent)] == [0o700, 0o700]
    monkeypatch.setenv("XDG_CACHE_HOME", str(home / "other"))
    assert cache_folder("loops") == home / "other/roundoff/loops"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert cache_folder("loops") == folder


def test_what_the_user_has_chosen_is_respected(home):
    assert cache_folder("loops", str(home / "chosen")) == home / "chosen/roundoff"
    assert cache_folder("loops", "/proc/nothing") == home / ".cache/roundoff/loops"


@pytest.mark.parametrize("how", ["link", "writable", "parent", "file"])
def test_what_others_could_change_is_not_used(home, tmp_path, how):
    folder, elsewhere = home / ".cache/roundoff/loops", tmp_path / "elsewhere"
    folder.parent.mkdir(parents=True)
    elsewhere.mkdir()
    if how == "link":
        folder.symlink_to(elsewhere)
    elif how == "writable":
        folder.mkdir()
        folder.chmod(0o770)
    elif how == "parent":
        folder.mkdir()
        folder.parent.chmod(0o777)
    else:
        folder.write_text("")
    assert cache_folder("loops") == tmp_path / f"tmp/roundoff-{os.geteuid()}/loops"
    assert not list(elsewhere.iterdir())


@pytest.mark.filterwarnings("ignore::roundoff.caches.CacheWarning")
def test_nobody_else_can_replace_a_folder_above(home, monkeypatch):
    """A folder far above is refused where others can write to it, and where a group can that is not the user's own."""
    above = home / ".cache"
    monkeypatch.setenv("XDG_CACHE_HOME", str(above / "a/b"))
    folder = above / "a/b/roundoff/loops"
    assert cache_folder("loops") == folder
    monkeypatch.setattr(pwd, "getpwuid", lambda _: SimpleNamespace(pw_name="ann"))

    def is_used(mode, group, *members):
        above.chmod(mode)
        found = SimpleNamespace(gr_name=group, gr_mem=[*members])
        monkeypatch.setattr(grp, "getgrgid", lambda _: found)
        return cache_folder("loops") == folder

    assert not is_used(0o777, "ann")
    assert is_used(0o1777, "ann")
    assert not is_used(0o770, "staff")
    if os.geteuid() == 0:
        assert not is_used(0o770, "ann")  # root's group may have other accounts
        for path in (home, *folder.parents[:5], folder):
            os.chown(path, 4000, 4000)
        monkeypatch.setattr(caches, "_user", lambda: 4000)
    assert is_used(0o770, "ann")
    assert is_used(0o770, "ann", "ann")
    assert not is_used(0o770, "ann", "ann", "bob")
    assert is_used(0o755, "staff", "bob")
    if os.geteuid() == 0:
        os.chown(above / "a", 4001, 4001)
        assert not is_used(0o755, "ann")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_what_somebody_else_has_made_first_is_not_used(home, tmp_path):
    """The attack on a predictable name in the shared temporary directory."""
    (home / ".cache").write_text("")
    squatted = tmp_path / f"tmp/roundoff-{os.geteuid()}"
    squatted.mkdir()
    os.chown(squatted, 65534, 65534)
    with pytest.warns(CacheWarning, match="XDG_CACHE_HOME"):
        assert cache_folder("loops") is None
    assert cache_folder("loops") is None  # said once
    assert not list(squatted.iterdir())


def test_without_any_folder_there_is_one_line_of_advice(home, tmp_path, monkeypatch):
    (home / ".cache").write_text("")
    monkeypatch.setattr(tempfile, "tempdir", str(home / ".cache"))
    with pytest.warns(CacheWarning) as said:
        assert [cache_folder("loops"), cache_folder("programs")] == [None, None]
    assert len(said) == 1
    assert "\n" not in str(said[0].message)
