# SPDX-License-Identifier: Apache-2.0
def accelerator(topology):
    return "tcg"
