# SPDX-License-Identifier: Apache-2.0
"""Computations on leased blocks where they lie, compressed or not; docs/python.md is the guide.

::

    with ns.acquire_prefix(keys) as prefix:
        best = ndp.topk(prefix.leases, queries, 64, layer=3)
        tokens = numpy.asarray(best.tokens)  # [head][query][64]
"""

from bowhead_kv._native import ndp_attend as attend
from bowhead_kv._native import ndp_digest as digest
from bowhead_kv._native import ndp_gather as gather
from bowhead_kv._native import ndp_score as score
from bowhead_kv._native import ndp_topk as topk
from bowhead_kv._types import Digests, GatheredRows, PartialAttention, Scores, TopK

__all__ = [
    "Digests",
    "GatheredRows",
    "PartialAttention",
    "Scores",
    "TopK",
    "attend",
    "digest",
    "gather",
    "score",
    "topk",
]
