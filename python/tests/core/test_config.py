# SPDX-License-Identifier: Apache-2.0
import os

import pytest
from bowhead_kv.config import Config, load


@pytest.fixture(autouse=True)
def clean(monkeypatch):
    for name in list(os.environ):
        if name.startswith("BOWHEAD_"):
            monkeypatch.delenv(name)


def test_the_environment(monkeypatch):
    monkeypatch.setenv("BOWHEAD_LOCATOR", "shm:kv")
    assert load() == Config(locator="shm:kv")
    monkeypatch.setenv("BOWHEAD_HOST", "3")
    monkeypatch.setenv("BOWHEAD_NAMESPACE", "llama")
    monkeypatch.setenv("BOWHEAD_THREADS", "2")
    monkeypatch.setenv("BOWHEAD_WIPE", "1")
    assert load() == Config(locator="shm:kv", host=3, namespace="llama", threads=2, wipe=True)


def test_overrides_before_environment_before_file(monkeypatch, tmp_path):
    file = tmp_path / "bowhead.toml"
    file.write_text('locator = "shm:file"\nhost = 1\nnamespace = "file"\n')
    monkeypatch.setenv("BOWHEAD_CONFIG", str(file))
    assert load() == Config(locator="shm:file", host=1, namespace="file")
    monkeypatch.setenv("BOWHEAD_HOST", "2")
    monkeypatch.setenv("BOWHEAD_NAMESPACE", "environment")
    assert load({"namespace": "override", "host": None}) == Config(
        locator="shm:file", host=2, namespace="override"
    )


def test_no_pool():
    with pytest.raises(ValueError, match="no pool is configured: set BOWHEAD_LOCATOR"):
        load()


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("BOWHEAD_HOST", "one", "BOWHEAD_HOST is 'one'; set it to an integer"),
        ("BOWHEAD_HOST", "64", "BOWHEAD_HOST is 64; set it to 0 to 63"),
        ("BOWHEAD_THREADS", "0", "BOWHEAD_THREADS is 0; set it to 1 to 64"),
        ("BOWHEAD_NAMESPACE", 64 * "n", "BOWHEAD_NAMESPACE is 'n+'; set it to at most 63 bytes"),
        ("BOWHEAD_LOCATOR", "shm:kv\n", r"BOWHEAD_LOCATOR is 'shm:kv\\n'; set it to a text of"),
        ("BOWHEAD_WIPE", "yes", "BOWHEAD_WIPE is 'yes'; set it to 0 or 1"),
        ("BOWHEAD_CONFIG", "/no/such.toml", "BOWHEAD_CONFIG=/no/such.toml cannot be read"),
    ],
)
def test_a_wrong_variable(monkeypatch, name, value, message):
    monkeypatch.setenv("BOWHEAD_LOCATOR", "shm:kv")
    monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=message):
        load()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('lokator = "shm:kv"', "unknown setting 'lokator'; the settings are locator, host"),
        ("locator = 1", "locator is 1; set it to a value of type str"),
        ('locator = "shm:kv"\nhost = true', "host is True; set it to a value of type int"),
        ("locator =", "cannot be read"),
    ],
)
def test_a_wrong_file(monkeypatch, tmp_path, text, message):
    file = tmp_path / "bowhead.toml"
    file.write_text(text)
    monkeypatch.setenv("BOWHEAD_CONFIG", str(file))
    with pytest.raises(ValueError, match=message) as caught:
        load()
    assert str(file) in str(caught.value)


def test_a_wrong_override():
    with pytest.raises(ValueError, match="the overrides: unknown setting 'pool'"):
        load({"locator": "shm:kv", "pool": "shm:kv"})
    with pytest.raises(ValueError, match="the overrides: namespace is ''; set it to a text of"):
        load({"locator": "shm:kv", "namespace": ""})


def test_a_file_that_is_no_text(monkeypatch, tmp_path):
    file = tmp_path / "bowhead.toml"
    file.write_bytes(b'locator = "shm:\xff"')
    monkeypatch.setenv("BOWHEAD_CONFIG", str(file))
    with pytest.raises(ValueError, match="bowhead.toml cannot be read"):
        load()
