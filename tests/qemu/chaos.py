# SPDX-License-Identifier: Apache-2.0
"""Chaos among four guests."""

import json
import os
import random
import time

from guests import DAX, eventually, fence, scenario, together

SECONDS = float(os.environ.get("BOWHEAD_CHAOS_SECONDS", "180"))
# Four guests share the processors: a host may stand still for seconds.
DEAD_S, RECLAIM_S = 6, 8
OPTIONS = (f"--size 512M --hosts 4 --dead-ms {DEAD_S * 1000} "
           f"--reclaim-ms {RECLAIM_S * 1000}")


class Chaos:
    """Work in all guests, and events. A report counts what a process of a guest did, until it ended
    by itself: what was killed has none."""

    def __init__(self, guests, seed):
        self.guests = guests
        self.random = random.Random(seed)
        self.reports = []

    def start(self, guest):
        guest.start("work", f"pool_worker work {DAX} --host {guest.number}")

    def end(self, guest):
        report = json.loads(guest.end("work", "pool_worker"))
        self.reports.append(report)
        assert report["faults"] == 0, report["fault"]

    def others(self, guest):
        return [other for other in self.guests if other is not guest]

    def machine_loses_power(self, guest):
        guest.kill()
        guest.boot()
        helper = self.random.choice(self.others(guest))
        fence(helper, dead=guest.number, host=helper.number)
        self.start(guest)

    def machine_stops(self, guest):
        guest.stop()
        time.sleep(self.random.uniform(0, 1.5 * DEAD_S))
        guest.go_on()

    def machine_stops_until_declared_dead(self, guest):
        witness = self.others(guest)[0]
        eventually(lambda: witness.host_info(guest.number)["state"] == "live")
        guest.stop()
        eventually(lambda: witness.host_info(guest.number)["state"] == "ended")
        time.sleep(self.random.choice((0, RECLAIM_S + 1)))  # past --reclaim-ms, too
        guest.go_on()

    def process_is_killed(self, guest):
        guest.run("killall -9 pool_worker")
        guest.wait("work", status=137)
        self.start(guest)

    def process_stops(self, guest):
        guest.run("killall -STOP pool_worker")
        time.sleep(self.random.choice((0.5, 1.5 * DEAD_S)))
        guest.run("killall -CONT pool_worker")

    def host_leaves(self, guest):
        self.end(guest)
        # Refused if the host was declared dead in the meantime.
        guest.try_run(f"bowhead pool leave {DAX} --host {guest.number}")
        self.start(guest)

    def run(self):
        """Each kind of event at least once, until the time is over. In the end a process is there
        that was fenced and can report it."""
        kinds = [self.machine_loses_power, self.machine_stops, self.process_is_killed,
                 self.machine_stops_until_declared_dead, self.process_stops, self.host_leaves]
        together(*(lambda guest=guest: self.start(guest) for guest in self.guests))
        start = time.monotonic()
        count = 0
        while count < len(kinds) or time.monotonic() - start < SECONDS:
            if count % len(kinds) == 0:
                self.random.shuffle(kinds)
            kind, guest = kinds[count % len(kinds)], self.random.choice(self.guests)
            print(f"-- {time.monotonic() - start:.0f} s: {kind.__name__}: {guest.number}")
            kind(guest)
            assert guest.is_running("work"), guest.run("cat /tmp/work.log")
            time.sleep(self.random.uniform(0, 4))
            count += 1
        self.machine_stops_until_declared_dead(self.guests[0])
        time.sleep(5)
        together(*(lambda guest=guest: self.end(guest) for guest in self.guests))


def join(guests):
    together(*(lambda guest=guest: guest.keep_host(guest.number, restart=True)
               for guest in guests))


def room(guests):
    """The numbers of blocks of some sizes that fit if one host has all of the pool."""
    together(*(lambda guest=guest: guest.end_host(leave=True) for guest in guests))
    return guests[0].run(f"pool_worker room {DAX} --host 0", seconds=300).splitlines()[-1]


@scenario("four-guests", "tests/qemu/pool_worker")
def chaos_among_four_guests(*guests):
    """Machines lose their power, stop and come back, processes are killed, hosts leave. No byte
    read is wrong, all hosts find the same blocks afterwards, and all space is back."""
    seed = int(os.environ.get("BOWHEAD_CHAOS_SEED", random.randrange(1 << 32)))
    print(f"BOWHEAD_CHAOS_SEED={seed} BOWHEAD_CHAOS_SECONDS={SECONDS:g}")
    guests[0].run(f"bowhead pool create {DAX} {OPTIONS}")
    join(guests)
    room_at_first = room(guests)

    chaos = Chaos(guests, seed)
    chaos.run()
    totals = {name: sum(report[name] for report in chaos.reports)
              for name in chaos.reports[0] if name != "fault"}
    print(f"in the {len(chaos.reports)} processes that were not killed: {totals}")
    assert min(totals[name] for name in ("stored", "read", "removed", "leased", "fenced")) > 0

    join(guests)
    found = together(*(lambda guest=guest: guest.run(
        f"pool_worker list {DAX} --host {guest.number}") for guest in guests))
    assert len(set(found)) == 1 and found[0].strip()
    assert "0 wrong" in guests[0].run(f"bowhead pool check {DAX} --payload")
    guests[0].run(f"pool_worker clear {DAX} --host 0")
    assert room(guests) == room_at_first
