// SPDX-License-Identifier: Apache-2.0
// Status: faults outside our code, as numbers that never change (include/bowhead/status.h).
// Error: a Status with the sentence that names the thing and says what to do.
// Result<T>: a T or an Error. Our own bugs are not statuses: see base/assert.h.
#pragma once

#include <bowhead/status.h>

#include <optional>
#include <string>
#include <utility>
#include <variant>

#include "base/assert.h"

namespace bowhead {

enum class [[nodiscard]] Status : int{
#define BOWHEAD_STATUS_ENUM(number, name, text) name = number,
    BH_STATUS_LIST(BOWHEAD_STATUS_ENUM)
#undef BOWHEAD_STATUS_ENUM
};

/// The name of a status as written in code, e.g. "NO_SPACE"; "UNKNOWN" for other numbers.
const char* status_name(Status status);

/// The sentence of a status; "unknown status" for other numbers.
const char* status_text(Status status);

/// A failure: its status, and a sentence with the details ("" on hot paths, where the status
/// suffices).
struct [[nodiscard]] Error {
  Status status = Status::SYSTEM;
  std::string detail;

  /// `detail` if there is one, else the sentence of the status.
  std::string message() const { return detail.empty() ? status_text(status) : detail; }
};

/// A value or an Error. `value()` asserts that there is one.
template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::move(value)) {}     // NOLINT(google-explicit-constructor)
  Result(Error error) : state_(std::move(error)) {  // NOLINT(google-explicit-constructor)
    BOWHEAD_ASSERT(std::get<Error>(state_).status != Status::OK);
  }
  Result(Status status) : Result(Error{status, {}}) {}  // NOLINT(google-explicit-constructor)

  explicit operator bool() const { return state_.index() == 0; }
  Status status() const { return *this ? Status::OK : std::get<Error>(state_).status; }

  T& value() & {
    BOWHEAD_ASSERT(*this);
    return std::get<T>(state_);
  }
  const T& value() const& {
    BOWHEAD_ASSERT(*this);
    return std::get<T>(state_);
  }
  T&& value() && {
    BOWHEAD_ASSERT(*this);
    return std::get<T>(std::move(state_));
  }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T&& operator*() && { return std::move(*this).value(); }

  const Error& error() const {
    BOWHEAD_ASSERT(!*this);
    return std::get<Error>(state_);
  }

 private:
  std::variant<T, Error> state_;
};

/// Success or an Error.
template <>
class [[nodiscard]] Result<void> {
 public:
  Result() = default;
  Result(Error error) : error_(std::move(error)) {  // NOLINT(google-explicit-constructor)
    BOWHEAD_ASSERT(error_->status != Status::OK);
  }
  Result(Status status) {  // NOLINT(google-explicit-constructor)
    if (status != Status::OK) error_ = Error{status, {}};
  }

  explicit operator bool() const { return !error_; }
  Status status() const { return error_ ? error_->status : Status::OK; }
  const Error& error() const {
    BOWHEAD_ASSERT(error_);
    return *error_;
  }

 private:
  std::optional<Error> error_;
};

}  // namespace bowhead
