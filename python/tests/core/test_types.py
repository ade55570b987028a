# SPDX-License-Identifier: Apache-2.0
"""The types of the package against the C headers and the native module."""

import ast
import dataclasses
import pathlib
import re

import bowhead_kv as bk
import pytest
from bowhead_kv import _native, gpu

INCLUDE = pathlib.Path(__file__).parents[3] / "include" / "bowhead"
PACKAGE = pathlib.Path(bk.__file__).parent


def test_statuses():
    for status in bk.Status:
        assert _native.status_name(status) == status.name
        assert status.text
    assert _native.status_name(len(bk.Status)) == "UNKNOWN"


def test_an_error_needs_no_text():
    error = bk.Error(bk.Status.BUSY)
    assert error.text == str(error) == bk.Status.BUSY.text


def members(header: str, struct: str) -> list[str]:
    """The members of a C struct but for its size and reserved ones."""
    text = re.sub(r"/\*.*?\*/", "", (INCLUDE / header).read_text(), flags=re.DOTALL)
    body = re.search(rf"typedef struct {struct} {{(.*?)}} {struct};", text, re.DOTALL).group(1)
    names = re.findall(r"(\w+)(?:\[\d+\])?;", body)
    return [name for name in names if name != "struct_bytes" and not name.startswith("reserved")]


@pytest.mark.parametrize(
    ("type", "header", "struct", "absent"),
    [
        (bk.PoolInfo, "bowhead.h", "bh_pool_info", set()),
        (bk.HostInfo, "bowhead.h", "bh_host_info", set()),
        (bk.NamespaceInfo, "bowhead.h", "bh_namespace_info", set()),
        (bk.Attributes, "bowhead.h", "bh_attributes", set()),
        (bk.Pressure, "bowhead.h", "bh_pressure", set()),
        (bk.BlockInfo, "bowhead.h", "bh_block_info", {"user_bytes"}),
        (bk.NamespaceOptions, "bowhead.h", "bh_namespace_options", set()),
        (bk.RecompressReport, "bowhead.h", "bh_recompress_report", set()),
        (bk.Layout, "format/tensor.h", "bh_kv_layout", set()),
        (gpu.DeviceInfo, "bowhead_gpu.h", "bh_gpu_info", set()),
        (gpu.TransfersInfo, "bowhead_gpu.h", "bh_gpu_transfers_info", set()),
    ],
)
def test_fields_are_those_of_the_c_struct(type, header, struct, absent):
    expected = [name for name in members(header, struct) if name not in absent]
    assert [field.name for field in dataclasses.fields(type)] == expected


def test_a_report_of_a_check_has_the_members_of_the_c_struct():
    counts = members("bowhead.h", "bh_check_report")
    texts = ["finding_texts", "not_checked_texts"]
    assert [field.name for field in dataclasses.fields(bk.CheckReport)] == counts + texts


def test_settings_of_create_are_those_of_the_c_struct():
    tree = ast.parse((PACKAGE / "_native.pyi").read_text())
    (create,) = (node for node in tree.body if getattr(node, "name", "") == "create")
    names = {argument.arg for argument in create.args.args + create.args.kwonlyargs}
    assert names - {"locator"} == set(members("bowhead.h", "bh_create_options"))


@pytest.mark.parametrize(
    ("enum", "prefix"),
    [
        (bk.Profile, "BH_PROFILE_"),
        (bk.Pins, "BH_PIN_"),
        (bk.Codec, "BH_CODEC_"),
        (bk.NumberFormat, "BH_NUMBER_"),
        (bk.Order, "BH_ORDER_"),
        (bk.ScalePlace, "BH_SCALES_"),
        (bk.Scales, "BH_SCALES_"),
        (bk.Rotary, "BH_ROTARY_"),
    ],
)
def test_numbers_are_those_of_the_c_header(enum, prefix):
    text = "".join((INCLUDE / "format" / name).read_text() for name in ("tensor.h", "block.h"))
    for member in enum:
        assert re.search(rf"\b{prefix}{member.name} = {member.value}\b", text), member


def test_kinds_of_events():
    text = (INCLUDE / "bowhead.h").read_text()
    found = dict(re.findall(r"#define BH_EVENT_(\w+) (\d+)u", text))
    assert {kind.name: str(kind.value) for kind in bk.EventKind} == found


@pytest.mark.parametrize(("enum", "prefix"), [(gpu.Path, "PATH"), (gpu.Staging, "STAGING")])
def test_numbers_of_jobs(enum, prefix):
    text = (INCLUDE / "bowhead_gpu.h").read_text()
    found = dict(re.findall(rf"#define BH_GPU_{prefix}_(\w+) (\d+)u", text))
    assert {member.name: str(member.value) for member in enum} == found


def test_the_stub_lists_what_the_module_has():
    tree = ast.parse((PACKAGE / "_native.pyi").read_text())
    stubs = {
        node.name: node for node in tree.body if isinstance(node, ast.ClassDef | ast.FunctionDef)
    }
    assert set(stubs) == {name for name in dir(_native) if not name.startswith("_")}
    for name, stub in stubs.items():
        if isinstance(stub, ast.ClassDef):
            listed = {node.name for node in stub.body if isinstance(node, ast.FunctionDef)}
            public = {member for member in listed if not member.startswith("__")}
            assert public == {member for member in dir(getattr(_native, name)) if member[0] != "_"}
