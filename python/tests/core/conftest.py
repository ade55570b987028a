# SPDX-License-Identifier: Apache-2.0
import itertools
import os
import time
from collections.abc import Callable, Iterator

import bowhead_kv as bk
import numpy as np
import pytest

_numbers = itertools.count()


@pytest.fixture
def make_pool() -> Iterator[Callable[..., str]]:
    """Creates pools that are destroyed after the test, and returns their locators."""
    made: list[str] = []

    def make(size_bytes: int = 128 << 20, **settings: int) -> str:
        locator = f"shm:py-test-{os.getpid()}-{next(_numbers)}"
        bk.create(locator, size_bytes, **settings)
        made.append(locator)
        return locator

    yield make
    for locator in made:
        try:
            bk.destroy(locator, force=True)
        except bk.Error as error:
            assert error.status is bk.Status.NO_SUCH_POOL


@pytest.fixture
def locator(make_pool: Callable[..., str]) -> str:
    return make_pool()


@pytest.fixture
def pool(locator: str) -> Iterator[bk.Pool]:
    with bk.Pool(locator) as opened:
        yield opened


@pytest.fixture
def ns(pool: bk.Pool) -> bk.Namespace:
    return pool.namespace("test", "of the tests")


@pytest.fixture
def layout() -> bk.Layout:
    """Of values that compress; `numbers` is one."""
    return bk.Layout(
        number_format=bk.NumberFormat.BF16,
        parts=2,
        layers=1,
        heads=2,
        key_channels=64,
        value_channels=64,
    )


@pytest.fixture
def coded(pool: bk.Pool, layout: bk.Layout) -> bk.Namespace:
    """A compressed namespace."""
    return pool.namespace("compressed", layout=layout, profile=bk.Profile.FAST)


@pytest.fixture
def numbers() -> np.ndarray:
    """64 tokens in bfloat16."""
    made = np.random.default_rng(1).normal(size=64 * 2 * 2 * 64).astype(np.float32)
    return (made.view(np.uint32) >> 16).astype(np.uint16)


@pytest.fixture
def in_child() -> Callable[[Callable[[], None]], None]:
    """Runs a function in the child of a fork; an exception there fails the test."""

    def run(body: Callable[[], None]) -> None:
        child = os.fork()
        if child == 0:
            try:
                body()
                os._exit(0)
            except BaseException as error:
                os.write(2, f"in the child: {error!r}\n".encode())
            finally:
                os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0

    return run


@pytest.fixture
def until() -> Callable[[Callable[[], object]], None]:
    """Waits until a condition holds."""

    def wait(condition: Callable[[], object], timeout_s: float = 30) -> None:
        end_s = time.monotonic() + timeout_s
        while not condition():
            assert time.monotonic() < end_s, "the condition did not become true"
            time.sleep(0.01)

    return wait
