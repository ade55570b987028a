// SPDX-License-Identifier: Apache-2.0
// Core: the pool's operations as one process of one host runs them, over an access policy.
//
// It constructs the shared parts and the rooms that use them (rooms.h), and does nothing else. A
// block holds bytes and names the codec that encoded the value; the core does not run codecs. All
// methods of all rooms may be called from any thread unless stated otherwise.
//
//   blocks      lookup, mirror, reading, writing, attributes, usage, retirement,
//               space; locks
//   hosts       membership, holdings, growth, grants, custody, mail
//   lives       joining, recovery
//   other       namespaces, inspection
#pragma once

#include "pool/core/attributes.h"
#include "pool/core/custody.h"
#include "pool/core/grants.h"
#include "pool/core/growth.h"
#include "pool/core/holdings.h"
#include "pool/core/inspection.h"
#include "pool/core/joining.h"
#include "pool/core/key_locks.h"
#include "pool/core/lookup.h"
#include "pool/core/mail.h"
#include "pool/core/membership.h"
#include "pool/core/mirror.h"
#include "pool/core/namespaces.h"
#include "pool/core/reading.h"
#include "pool/core/recovery.h"
#include "pool/core/retirement.h"
#include "pool/core/rooms.h"
#include "pool/core/space.h"
#include "pool/core/usage.h"
#include "pool/core/writing.h"

namespace bowhead::core {

inline uint64_t next_instance() {
  static std::atomic<uint64_t> instances{0};
  return ++instances;
}

template <class A>
class Core {
  // Declared before the rooms, which use them; the rooms hold only references to each other.
  Context<A> context_;
  Extents<A> extents_;
  Allocator<A> allocator_;
  Index<A> index_;
  Leases<A> leases_;
  Hosts<A> hosts_;
  const Settings settings_;
  const Rooms<A> rooms_;

 public:
  Core(A& access, const bh_superblock& superblock, uint32_t host,
       uint64_t mirror_bytes = kMirrorBytes)
      : context_{access,
                 Layout(superblock.geometry),
                 Sealer(superblock.pool_id),
                 next_instance(),
                 times_of(superblock),
                 host,
                 0,
                 0},
        extents_(context_),
        allocator_(context_, extents_),
        index_(context_),
        leases_(context_),
        hosts_(context_),
        settings_{superblock.evict_high_permille,
                  superblock.evict_low_permille,
                  mirror_bytes,
                  has_newer_features(superblock),
                  (superblock.compat & BH_FEATURE_RINGS) != 0,
                  {superblock.pool_id[0], superblock.pool_id[1]}},
        rooms_{context_, extents_,   allocator_, index_,     leases_,   hosts_,     settings_,
               locks,    mirror,     lookup,     attributes, usage,     retirement, reading,
               writing,  space,      namespaces, holdings,   growth,    mail,       grants,
               custody,  membership, joining,    recovery,   inspection} {}
  Core(const Core&) = delete;
  Core& operator=(const Core&) = delete;

  Context<A>& context() { return context_; }
  Extents<A>& extents() { return extents_; }
  Allocator<A>& allocator() { return allocator_; }
  Index<A>& index() { return index_; }
  Leases<A>& leases() { return leases_; }
  Hosts<A>& hosts() { return hosts_; }

  KeyLocks<A> locks{rooms_};
  Mirror<A> mirror{rooms_};
  Lookup<A> lookup{rooms_};
  Attributes<A> attributes{rooms_};
  Usage<A> usage{rooms_};
  Retirement<A> retirement{rooms_};
  Reading<A> reading{rooms_};
  Writing<A> writing{rooms_};
  Space<A> space{rooms_};
  Namespaces<A> namespaces{rooms_};
  Holdings<A> holdings{rooms_};
  Growth<A> growth{rooms_};
  Mail<A> mail{rooms_};
  Grants<A> grants{rooms_};
  Custody<A> custody{rooms_};
  Membership<A> membership{rooms_};
  Joining<A> joining{rooms_};
  Recovery<A> recovery{rooms_};
  Inspection<A> inspection{rooms_};
};

}  // namespace bowhead::core
