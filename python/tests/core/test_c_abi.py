# SPDX-License-Identifier: Apache-2.0
"""Python reaches all that the headers declare: a function added there fails until it is bound."""

import pathlib
import re

import pytest
from bowhead_kv import _native

HEADERS = pathlib.Path(__file__).parents[3] / "include" / "bowhead"

NOT_CALLED = {
    "bh_namespace_open": "bh_namespace_open_with() with the default options is the same",
    "bh_pool_open": "bh_pool_open_with() with the default options is the same",
    "bh_put": "bh_put_with() with the default options is the same",
    "bh_reserve": "bh_reserve_with() with the default options is the same",
}


def declared() -> set[str]:
    names = ("bowhead.h", "bowhead_gpu.h", "bowhead_ndp.h")
    text = "".join((HEADERS / name).read_text() for name in names)
    text = re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)
    text = re.sub(r"#define.*", "", text)
    return set(re.findall(r"\b(bh_\w+)\([^;]*\);", text))


def called() -> set[str]:
    """The names in the module's table of symbols, each of which ends with a zero byte."""
    library = pathlib.Path(_native.__file__).read_bytes()
    return {name.decode() for name in re.findall(rb"\0(bh_\w+)(?=\0)", library)}


def test_the_header_was_read():
    some = {"bh_pool_open", "bh_get", "bh_queue_submit", "bh_pool_mapping"}
    some |= {"bh_gpu_spill", "bh_ndp_topk"}
    assert some <= declared()
    assert len(declared()) > 50


@pytest.mark.parametrize("function", sorted(declared() - set(NOT_CALLED)))
def test_python_calls_the_function(function):
    assert function in called()


@pytest.mark.parametrize("function", NOT_CALLED)
def test_an_exception_is_still_one(function):
    assert function in declared()
    assert function not in called()
