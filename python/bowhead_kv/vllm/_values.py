# SPDX-License-Identifier: Apache-2.0
"""What the results of a batch mean for an engine."""

from collections.abc import Iterable

import bowhead_kv as bk
from bowhead_kv.link import PoolLink

_UNUSABLE = frozenset(
    {bk.Status.DAMAGED, bk.Status.BUFFER_TOO_SMALL, bk.Status.UNSUPPORTED_CODEC}
)


def loaded(
    link: PoolLink,
    ns: bk.Namespace,
    keys: list[bytes],
    results: Iterable[tuple[bk.Status, int]],
    length_bytes: int,
) -> list[bool]:
    """For each key of a batch of gets, whether the whole value has arrived. A block that can never
    be loaded is removed, because its key could not be stored again while it is there."""
    good = []
    unusable = []
    for key, (status, found_bytes) in zip(keys, results, strict=True):
        good.append(status == bk.Status.OK and found_bytes == length_bytes)
        if status in _UNUSABLE or (status == bk.Status.OK and not good[-1]):
            unusable.append(key)
        if status not in (bk.Status.OK, bk.Status.NOT_FOUND):
            link.fault(status, ns)
    if unusable:
        try:
            ns.remove_batch(unusable)
        except bk.Error as error:
            link.fault(error, ns)
    return good


def stored(link: PoolLink, ns: bk.Namespace, statuses: Iterable[bk.Status]) -> list[bool]:
    """For each key of a batch of puts, whether its value is stored. In a full pool it is not: a
    miss later on, and nothing else."""
    good = []
    for status in statuses:
        good.append(status == bk.Status.OK)
        if status != bk.Status.OK:
            link.fault(status, ns)
    return good
