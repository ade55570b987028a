// SPDX-License-Identifier: Apache-2.0
#include "ndp/checkpoint.h"

namespace bowhead::ndp {
namespace {

constexpr uint32_t kAskedEveryTokens = 512;  // of keys of 128 channels and eight queries: some us

}  // namespace

thread_local CheckpointScope::State CheckpointScope::current;

CheckpointScope::CheckpointScope(const Checkpoint& ask) : before_(current) {
  current = {ask ? &ask : nullptr, kAskedEveryTokens, Status::OK};
}
CheckpointScope::~CheckpointScope() { current = before_; }

Status CheckpointScope::status() const { return current.status; }

void CheckpointScope::ask() {
  const State asked = current;
  if (asked.status != Status::OK) return;
  const Status status = (*asked.ask)();
  current = {asked.ask, kAskedEveryTokens, status};
}

}  // namespace bowhead::ndp
