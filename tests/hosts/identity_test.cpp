// SPDX-License-Identifier: Apache-2.0
// The identity of hosts: machines whose ids are equal, different or unknown, and machines that
// another one declared dead. Two machines on one memory are two cores with stated ids that do not
// see each other's locks.
#include "tests/support/hosts.h"
#include "tests/support/native_core.h"

namespace bowhead::test {
namespace {

constexpr SharingTimes kTimes{
    .heartbeat_ms = 5, .dead_ms = 60, .grace_ms = 20, .settle_ms = 1, .reclaim_ms = 100};

struct Identity {
  uint64_t machine, hardware, boot;
};

class MachineAccess : public core::NativeAccess {
 public:
  MachineAccess(Media& media, const Identity& identity)
      : NativeAccess(media, choose_flush_kind(/*needed=*/true)), identity_(identity) {
    static uint32_t kernels = 0;
    kernel_ = ++kernels * BH_HOSTS_MAX;
  }
  uint64_t machine_id() const { return identity_.machine; }
  uint64_t hardware_id() const { return identity_.hardware; }
  uint64_t boot_id() const { return identity_.boot; }
  // The locks belong to another kernel.
  core::LockResult lock_process(uint32_t host, uint32_t process) {
    return NativeAccess::lock_process(host + kernel_, process);
  }
  void unlock_process(uint32_t host, uint32_t process) {
    NativeAccess::unlock_process(host + kernel_, process);
  }
  bool process_alive(uint32_t host, uint32_t process) const {
    return NativeAccess::process_alive(host + kernel_, process);
  }
  core::LockResult lock_host(uint32_t host, uint64_t wait_ms) {
    return NativeAccess::lock_host(host + kernel_, wait_ms);
  }
  void unlock_host(uint32_t host) { NativeAccess::unlock_host(host + kernel_); }
  void sleep_ns(uint64_t ns) const {
    if (while_asleep) while_asleep();
    NativeAccess::sleep_ns(ns);
  }

  std::function<void()> while_asleep;  ///< the work of other machines meanwhile

 private:
  Identity identity_;
  uint32_t kernel_;
};

/// A machine that opens the pool as host 0, or another host. The test drives its heartbeats.
struct Machine {
  Machine(const SharedPool& shared, const Identity& identity, uint32_t host = 0)
      : media(*open_media(shared.locator())),
        access(*media, identity),
        core(access, shared.superblock(), host) {}

  Status put(std::string_view name) {
    const auto value = value_of(name, 5000);
    const ConstSpan in[] = {{value.data(), value.size()}};
    return core.writing.put(core::Key(1, name), in);
  }
  bool has(std::string_view name) {
    std::vector<std::byte> out(5000);
    const Span to[] = {{out.data(), out.size()}};
    return core.reading.get(core::Key(1, name), to) && out == value_of(name, 5000);
  }

  std::unique_ptr<Media> media;
  MachineAccess access;
  core::Core<MachineAccess> core;
};

constexpr Identity kFirst{.machine = 11, .hardware = 21, .boot = 31};

/// All relations of a second machine to the first: each id unknown, equal or different.
std::vector<Identity> second_machines() {
  std::vector<Identity> all;
  for (const uint64_t machine : {uint64_t{0}, kFirst.machine, uint64_t{12}}) {
    for (const uint64_t hardware : {uint64_t{0}, kFirst.hardware, uint64_t{22}}) {
      for (const uint64_t boot : {kFirst.boot, uint64_t{32}})
        all.push_back({machine, hardware, boot});
    }
  }
  return all;
}

std::string name_of(const Identity& id) {
  return fmt::format("machine {} hardware {} boot {}", id.machine, id.hardware, id.boot);
}

class Identities : public testing::Test {
 protected:
  SharedPool shared_{2, {.evict_high_permille = 0}, kTimes};
};

/// Machines without a boot id could not be distinguished, nor a reboot from a dead process.
TEST(Boots, AMachineThatCannotTellItsBootIsRefused) {
  for (const uint32_t hosts : {1u, 2u}) {
    SharedPool shared(hosts);
    Machine machine(shared, {.machine = 1, .hardware = 0, .boot = 0});
    const auto refused = machine.core.joining.attach({});
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.status(), Status::SYSTEM);
    EXPECT_NE(refused.error().message().find("boot_id"), std::string::npos)
        << refused.error().message();
  }
}

TEST_F(Identities, NoMachineJoinsWhileAHeartbeatMoves) {
  Machine first(shared_, kFirst);
  ASSERT_TRUE(first.core.joining.attach({}));
  for (const Identity& id : second_machines()) {
    Machine second(shared_, id);
    second.access.while_asleep = [&] { ASSERT_TRUE(first.core.membership.heartbeat()); };
    const auto attached = second.core.joining.attach({});
    ASSERT_FALSE(attached) << name_of(id);
    EXPECT_EQ(attached.status(), Status::HOST_ID_IN_USE) << name_of(id);
  }
  EXPECT_EQ(first.put("still here"), Status::OK);
}

/// Neither an equal machine id nor a new boot id shows that the old one has stopped.
TEST_F(Identities, WithoutAHeartbeatOnlyTheSameBootOrHardwareJoins) {
  for (const Identity& id : second_machines()) {
    const SharedPool shared(2, {.evict_high_permille = 0}, kTimes);
    Machine first(shared, kFirst);
    ASSERT_TRUE(first.core.joining.attach({}));
    ASSERT_EQ(first.put("stored"), Status::OK);
    Machine second(shared, id);
    const auto attached = second.core.joining.attach({});
    const bool may = id.boot == kFirst.boot || id.hardware == kFirst.hardware;
    ASSERT_EQ(static_cast<bool>(attached), may) << name_of(id);
    if (!may) {
      EXPECT_EQ(attached.status(), Status::HOST_ID_IN_USE) << name_of(id);
      EXPECT_NE(attached.error().message().find("pool fence"), std::string::npos);
    } else {
      EXPECT_TRUE(second.has("stored")) << name_of(id);
    }
  }
}

TEST_F(Identities, AnyMachineFollowsOneThatLeft) {
  for (const Identity& id : second_machines()) {
    const SharedPool shared(2, {.evict_high_permille = 0}, kTimes);
    Machine first(shared, kFirst);
    ASSERT_TRUE(first.core.joining.attach({}));
    ASSERT_EQ(first.put("stored"), Status::OK);
    ASSERT_TRUE(first.core.joining.leave());
    first.core.joining.detach();
    Machine second(shared, id);
    const auto attached = second.core.joining.attach({});
    EXPECT_TRUE(attached) << name_of(id) << ": " << attached.error().message();
    EXPECT_TRUE(second.has("stored")) << name_of(id);
  }
}

// ---- a machine that another one took for dead ----

/// Whatever it does first returns the status.
enum class Act {
  PUT,
  PUT_PRESENT,
  COMMIT,
  ABORT,
  RELEASE,
  ACQUIRE,
  REMOVE,
  RESERVE,
  HEARTBEAT,
  WORK,
  DETACH
};

Status act(Machine& machine, Act what, Reservation& reservation, Lease& lease) {
  switch (what) {
    case Act::PUT:
      return machine.put("late");
    case Act::PUT_PRESENT:
      return machine.put("stored");
    case Act::COMMIT:
      return machine.core.writing.commit(reservation, PayloadSum{});
    case Act::ABORT:
      return machine.core.writing.abort(reservation);
    case Act::RELEASE:
      return machine.core.reading.release(lease);
    case Act::ACQUIRE:
      return machine.core.reading.acquire(core::Key(1, "stored"), 1000).status();
    case Act::REMOVE:
      return machine.core.writing.remove(core::Key(1, "stored"));
    case Act::RESERVE:
      return machine.core.writing.reserve(core::Key(1, "more"), 100).status();
    case Act::HEARTBEAT:
      return machine.core.membership.heartbeat().status();
    case Act::WORK:
      return machine.core.membership.work().status();
    case Act::DETACH:
      machine.core.joining.detach();
      return Status::HOST_FENCED;
  }
  return Status::OK;
}

TEST_F(Identities, AMachineTakenForDeadEndsWithAStatus) {
  for (int n = 0; n <= static_cast<int>(Act::DETACH); ++n) {
    const SharedPool shared(2, {.evict_high_permille = 0}, kTimes);
    Machine first(shared, kFirst);
    ASSERT_TRUE(first.core.joining.attach({}));
    ASSERT_EQ(first.put("stored"), Status::OK);
    auto reservation = first.core.writing.reserve(core::Key(1, "reserved"), 5000);
    auto lease = first.core.reading.acquire(core::Key(1, "stored"), 60'000);
    ASSERT_TRUE(reservation && lease);
    Machine second(shared, {kFirst.machine, kFirst.hardware, kFirst.boot + 1});
    ASSERT_TRUE(second.core.joining.attach({}));
    ASSERT_EQ(second.put("after"), Status::OK);
    // Each act comes first once, followed by the others.
    for (int i = 0; i <= static_cast<int>(Act::DETACH); ++i) {
      const Act what = i == 0   ? static_cast<Act>(n)
                       : i <= n ? static_cast<Act>(i - 1)
                                : static_cast<Act>(i);
      if (what == Act::DETACH && i != static_cast<int>(Act::DETACH)) continue;
      const Status status = act(first, what, *reservation, *lease);
      const bool fits = what == Act::RELEASE ? status == Status::LAPSED || status == Status::CLOSED
                        : what == Act::ABORT || what == Act::COMMIT
                            ? status != Status::OK || what == Act::ABORT
                            : status == Status::HOST_FENCED || status == Status::HOST_ID_CONFLICT;
      EXPECT_TRUE(fits) << "act " << static_cast<int>(what) << " after " << n << ": "
                        << status_name(status);
    }
    EXPECT_TRUE(second.has("after") && second.has("stored")) << n;
    EXPECT_EQ(second.put("more"), Status::OK) << n;
  }
}

// ---- a machine that dies while it joins ----

struct Died {};

/// Between the decision that its first life follows and the line that would show that life.
void die_while_joining(const SharedPool& shared) {
  Machine machine(shared, kFirst);
  machine.access.while_asleep = [&] {
    const auto word =
        core::DecideWord::unpack(shared.read<uint64_t>(shared.layout().word(0, BH_PART_DECIDE, 0)));
    if (word.done) throw Died{};
  };
  EXPECT_THROW((void)machine.core.joining.attach({}), Died);
  EXPECT_EQ(shared.slot(0).value_or(bh_host_slot{}).incarnation, 0u);
}

TEST_F(Identities, AHostThatDiedWhileItJoinedCanBeFenced) {
  die_while_joining(shared_);
  Host other = shared_.open(1);
  EXPECT_TRUE(eventually([&] { return static_cast<bool>(other.pool().fence(0)); }));
  EXPECT_TRUE(eventually([&] {
    const auto host = other.info_of(1);
    return host.extents_owned == shared_.extents() && host.extents_custody == 0;
  })) << "its space comes back in full";
}

// ---- exact copies ----

/// Both end: the other one stores a value of the heartbeat word that this machine did not store;
/// and this machine's reaction ends the other one.
TEST_F(Identities, AnExactCopyEndsBoth) {
  Machine first(shared_, kFirst);
  ASSERT_TRUE(first.core.joining.attach({}));
  const uint64_t nonce = shared_.slot(0)->nonce;
  sleep_ms(kTimes.heartbeat_ms);
  ASSERT_TRUE(first.core.membership.heartbeat());
  const uint64_t heartbeat_at =
      shared_.layout().part(0, BH_PART_HEARTBEAT) + offsetof(bh_host_heartbeat, heartbeat);
  const uint64_t heartbeat = shared_.read<uint64_t>(heartbeat_at) + 1;
  std::memcpy(shared_.at(heartbeat_at), &heartbeat, sizeof heartbeat);
  sleep_ms(kTimes.heartbeat_ms);
  const auto done = first.core.membership.heartbeat();
  ASSERT_FALSE(done);
  EXPECT_EQ(done.status(), Status::HOST_ID_CONFLICT);
  EXPECT_EQ(first.put("x"), Status::HOST_ID_CONFLICT);
  EXPECT_NE(shared_.slot(0)->nonce, nonce) << "the copy finds that its slot line changed";
}

TEST_F(Identities, AHeartbeatOfAnotherProcessOfTheHostIsNotACopy) {
  Machine first(shared_, kFirst);
  ASSERT_TRUE(first.core.joining.attach({}));
  for (int n = 0; n < 50; ++n) {
    sleep_ms(kTimes.heartbeat_ms);
    EXPECT_TRUE(first.core.membership.heartbeat());
    EXPECT_TRUE(first.core.membership.work());
  }
}

}  // namespace
}  // namespace bowhead::test
