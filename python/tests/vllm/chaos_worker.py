# SPDX-License-Identifier: Apache-2.0
"""A process of the chaos test: an engine with a connector and one with a tier, in turns.

Usage: chaos_worker.py LOCATOR HOST SECONDS SEED

Prints "ready", and after SECONDS a line of JSON: counts of pages and rows, and the longest time of
each call. An exception out of a plug-in ends it with a traceback.
"""

import json
import logging
import random
import sys
import time

from driver import PROMPTS, ConnectorDriver, TierDriver


def main() -> None:
    locator, host, seconds, seed = sys.argv[1], *(int(each) for each in sys.argv[2:])
    logging.disable(logging.WARNING)
    settings = {"locator": locator, "host": host}
    stages = [["layer.0", "layer.1"], ["layer.2"]]
    connector = ConnectorDriver(settings, stages=stages, seed=seed)
    tier = TierDriver(settings, seed=seed)
    chance = random.Random(seed)
    loaded_s = 0.0
    print("ready", flush=True)
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s:
        before = connector.counts["loaded"], tier.counts["loaded"]
        connector.serve(chance.sample(range(PROMPTS), 3), chance.choice((1, 2, 4)))
        tier.serve()
        if connector.counts["loaded"] > before[0] and tier.counts["loaded"] > before[1]:
            loaded_s = time.monotonic()
    connector.close()
    tier.close()
    print(
        json.dumps(
            {
                "connector": connector.counts,
                "tier": tier.counts,
                "longest_s": {
                    f"{name}.{call}": seconds
                    for name, driver in (("connector", connector), ("tier", tier))
                    for call, seconds in driver.time.longest_s.items()
                },
                "loaded_at_the_end": loaded_s > end_s - 2,
            }
        ),
        flush=True,
    )


if __name__ == "__main__":
    main()
