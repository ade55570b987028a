// SPDX-License-Identifier: Apache-2.0
// The arguments and results of a batch, with all memory that they need. Calls and jobs share them.
#pragma once

#include <optional>
#include <vector>

#include "python/src/arguments.h"
#include "python/src/types.h"

namespace bowhead::python {

/// The length of the other lists of a batch must be that of its keys.
inline void check_length(const char* name, size_t length, size_t keys) {
  if (length == keys) return;
  raise_argument(PyExc_ValueError, name, kAlone,
                 "has " + std::to_string(length) + " items for " + std::to_string(keys) + " keys");
}

struct PutBatch {
  PutBatch(nb::handle keys_object, nb::handle values_object, nb::handle metadata_object,
           nb::handle attributes_of_all);

  nb::object statuses() const {
    return status_list(items.size(), [this](size_t i) { return items[i].status; });
  }

  Keys keys;
  Buffers<bh_const_iovec> values{"values"};
  Buffers<bh_const_iovec> metadata{"user_metadata"};
  std::optional<bh_attributes> attributes;
  std::vector<bh_put_options> options;  // none, one for all items, or one for each
  std::vector<bh_put_item> items;
};

struct GetBatch {
  GetBatch(nb::handle keys_object, nb::handle buffers_object);

  nb::object statuses() const {
    return status_list(items.size(), [this](size_t i) { return items[i].status; });
  }
  nb::object lengths() const;
  nb::object results() const;

  Keys keys;
  Buffers<bh_iovec> buffers{"buffers"};
  std::vector<bh_get_item> items;
};

struct RemoveBatch {
  explicit RemoveBatch(nb::handle keys_object)
      : keys(keys_object, "keys"), outputs(keys.size(), BH_CANCELLED) {}

  nb::object statuses() const {
    return status_list(outputs.size(), [this](size_t i) { return outputs[i]; });
  }

  Keys keys;
  std::vector<bh_status> outputs;
};

struct ExistsBatch {
  explicit ExistsBatch(nb::handle keys_object) : keys(keys_object, "keys"), outputs(keys.size()) {}

  nb::object present() const { return bool_list(outputs.data(), outputs.size()); }

  Keys keys;
  std::vector<uint8_t> outputs;
};

/// The options of a put: an item of user metadata, and attributes where there are any. `position`
/// is that of the argument, for errors.
bh_put_options put_options(const Buffers<bh_const_iovec>& metadata, size_t item, size_t position,
                           const std::optional<bh_attributes>& attributes);

/// Attributes, unless the argument is None.
std::optional<bh_attributes> attributes_argument(nb::handle attributes);

}  // namespace bowhead::python
