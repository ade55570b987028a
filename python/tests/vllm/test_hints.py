# SPDX-License-Identifier: Apache-2.0
"""How long blocks are kept: settings and hints."""

import logging
from typing import Any

import bowhead_kv as bk
import pytest
from bowhead_kv.vllm._hints import Hints, Keep, take_keep
from bowhead_kv.vllm._publisher import take_event_settings
from hint import envelope

log = logging.getLogger("vllm.bowhead")


def test_settings() -> None:
    settings = {"ttl_s": 60, "priority": 3, "locator": "shm:kv"}
    keep = take_keep(settings)
    assert settings == {"locator": "shm:kv"}
    assert keep == Keep(ttl_s=60, priority=3)
    assert Keep().attributes() is None
    assert Keep(pin="hard").attributes() == bk.Attributes(pins=bk.Pins.HARD)


@pytest.mark.parametrize(
    "settings, error",
    [
        ({"ttl_s": 0}, "ttl_s is 0; set it to a number of seconds above 0, at most 2,147,483,648"),
        ({"ttl_s": float("nan")}, "ttl_s is nan; set it to"),
        ({"ttl_s": 2**31 + 1}, "ttl_s is 2147483649; set it to"),
        ({"ttl_s": "60"}, "ttl_s is '60'"),
        ({"pin": True}, "pin is True; set it to one of none, soft, hard"),
        ({"priority": 256}, "priority is 256; set it to 0 to 255"),
        ({"priority": 1.5}, "priority is 1.5"),
    ],
)
def test_wrong_settings_are_refused_by_name(settings: dict[str, Any], error: str) -> None:
    with pytest.raises(ValueError, match=error):
        take_keep(settings)


def test_hints_change_what_they_name() -> None:
    hints = Hints(Keep(ttl_s=60, pin="soft"), log)
    assert hints.of(None) == Keep(ttl_s=60, pin="soft")
    assert hints.of(envelope({"priority": 7}, {"ttl_s": None})) == Keep(pin="soft", priority=7)
    other = envelope({"anything": 1}, type_="of.another.component")
    assert hints.of(other) == Keep(ttl_s=60, pin="soft")


def test_wrong_hints_are_ignored_with_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    hints = Hints(Keep(), log)
    wrong = [
        envelope({"pin": ["hard"]}),
        envelope({"unknown": 1}),
        envelope({"priority": 1}, version="2"),
        envelope([]),
        envelope(None),
    ]
    assert [hints.of(found) for found in wrong] == [Keep()] * len(wrong)
    (record,) = caplog.records
    assert "a hint bowhead.keep is ignored" in record.message
    assert "pin is ['hard']" in record.message


def test_event_settings_are_checked() -> None:
    settings = {"events_endpoint": "tcp://*:5557", "locator": "shm:kv"}
    assert take_event_settings(settings) == {"events_endpoint": "tcp://*:5557"}
    assert settings == {"locator": "shm:kv"}
    with pytest.raises(ValueError, match="events_endpoint is 5557; set it to a text"):
        take_event_settings({"events_endpoint": 5557})
    with pytest.raises(ValueError, match="events_topic is set and events_endpoint is not"):
        take_event_settings({"events_topic": "kv"})
