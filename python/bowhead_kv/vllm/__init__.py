# SPDX-License-Identifier: Apache-2.0
"""vLLM on a Bowhead pool: a connector, and a secondary tier for vLLM's own offloading.

Both are loaded by vLLM from its configuration; see docs/engines/vllm.md. Importing this package
fails with an ImportError if vLLM's version is not one that it was written for.
"""

from bowhead_kv.vllm import _versions

_versions.check()
