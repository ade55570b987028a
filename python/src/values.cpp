// SPDX-License-Identifier: Apache-2.0
// Values of a namespace: copied in and out, one at a time and in batches.
#include "python/src/batches.h"
#include "python/src/pool.h"

namespace bowhead::python {
namespace {

/// The length of a value, by a get without space for it: it counts as a miss where it is one.
uint64_t length_to_get(const Namespace& ns, const bh_key& key) {
  uint64_t length_bytes = 0;
  const bh_status status = ns.pool->run(
      [&](bh_pool* pool) { return bh_get(pool, ns.id, key, nullptr, 0, &length_bytes); });
  if (status != BH_BUFFER_TOO_SMALL) check(status);
  return length_bytes;
}

nb::object get(const Namespace& ns, nb::handle key_object) {
  const Keys keys = Keys::one(key_object);
  uint64_t length_bytes = length_to_get(ns, keys[0]);
  while (true) {
    PyObject* value = PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(length_bytes));
    if (value == nullptr) throw nb::python_error();
    nb::object owner = nb::steal(value);
    const bh_iovec room = {PyBytes_AsString(value), length_bytes};
    uint64_t got_bytes = 0;
    const bh_status status = ns.pool->run(
        [&](bh_pool* pool) { return bh_get(pool, ns.id, keys[0], &room, 1, &got_bytes); });
    if (status == BH_OK && got_bytes == length_bytes) return owner;
    // Another value was stored under the key since its length was read.
    if (status != BH_BUFFER_TOO_SMALL) check(status);
    length_bytes = got_bytes;
  }
}

uint64_t get_into(const Namespace& ns, nb::handle key, nb::handle buffers_object) {
  const Keys keys = Keys::one(key);
  Buffers<bh_iovec> buffers("buffers");
  buffers.append(buffers_object, kAlone);
  uint64_t length_bytes = 0;
  check(ns.pool->run([&](bh_pool* pool) {
    return bh_get(pool, ns.id, keys[0], buffers.parts(0), buffers.part_count(0), &length_bytes);
  }));
  return length_bytes;
}

nb::object get_planes(const Namespace& ns, nb::handle key, nb::handle planes,
                      nb::handle buffers_object) {
  const Keys keys = Keys::one(key);
  const auto count = number<uint32_t>("planes", planes);
  Buffers<bh_iovec> buffers("buffers");
  buffers.append(buffers_object, kAlone);
  uint64_t length_bytes = 0;
  uint64_t read_bytes = 0;
  check(ns.pool->run([&](bh_pool* pool) {
    return bh_get_planes(pool, ns.id, keys[0], count, buffers.parts(0), buffers.part_count(0),
                         &length_bytes, &read_bytes);
  }));
  nb::dict fields;
  fields["length_bytes"] = length_bytes;
  fields["read_bytes"] = read_bytes;
  return make("PlanesResult", fields);
}

nb::object get_stored(const Namespace& ns, nb::handle key, nb::handle buffer) {
  const Keys keys = Keys::one(key);
  Buffers<bh_iovec> buffers("buffer");
  buffers.append(buffer, kAlone);
  const bh_iovec& room = buffers.only_part(0, kAlone);
  uint64_t stored_bytes = 0;
  uint64_t length_bytes = 0;
  uint32_t codec = 0;
  check(ns.pool->run([&](bh_pool* pool) {
    return bh_get_stored(pool, ns.id, keys[0], room.data, room.size_bytes, &stored_bytes,
                         &length_bytes, &codec);
  }));
  nb::dict fields;
  fields["stored_bytes"] = stored_bytes;
  fields["length_bytes"] = length_bytes;
  fields["codec"] = codec_object(codec);
  return make("StoredResult", fields);
}

void put(const Namespace& ns, nb::handle key, nb::handle value_object, nb::handle user_metadata,
         nb::handle attributes_object) {
  const Keys keys = Keys::one(key);
  Buffers<bh_const_iovec> value("value");
  value.append(value_object, kAlone);
  Buffers<bh_const_iovec> metadata("user_metadata");
  metadata.append(user_metadata, kAlone);
  const std::optional<bh_attributes> attributes = attributes_argument(attributes_object);
  const bh_put_options options = put_options(metadata, 0, kAlone, attributes);
  check(ns.pool->run([&](bh_pool* pool) {
    return bh_put_with(pool, ns.id, keys[0], value.parts(0), value.part_count(0), &options);
  }));
}

nb::object put_batch(const Namespace& ns, nb::handle keys, nb::handle values,
                     nb::handle user_metadata, nb::handle attributes) {
  PutBatch batch(keys, values, user_metadata, attributes);
  check(ns.pool->run([&](bh_pool* pool) {
    return bh_put_batch(pool, ns.id, batch.items.data(), batch.items.size());
  }));
  return batch.statuses();
}

nb::object get_batch(const Namespace& ns, nb::handle keys, nb::handle buffers) {
  GetBatch batch(keys, buffers);
  check(ns.pool->run([&](bh_pool* pool) {
    return bh_get_batch(pool, ns.id, batch.items.data(), batch.items.size());
  }));
  return batch.results();
}

nb::object remove_batch(const Namespace& ns, nb::handle keys) {
  RemoveBatch batch(keys);
  check(ns.pool->run([&](bh_pool* pool) {
    return bh_remove_batch(pool, ns.id, batch.keys.data(), batch.keys.size(), batch.outputs.data());
  }));
  return batch.statuses();
}

bool remove(const Namespace& ns, nb::handle key) {
  const Keys keys = Keys::one(key);
  const bh_status status =
      ns.pool->run([&](bh_pool* pool) { return bh_remove(pool, ns.id, keys[0]); });
  if (status != BH_NOT_FOUND) check(status);
  return status == BH_OK;
}

nb::object exists(const Namespace& ns, nb::handle keys) {
  ExistsBatch batch(keys);
  check(ns.pool->run([&](bh_pool* pool) {
    return bh_exists(pool, ns.id, batch.keys.data(), batch.keys.size(), batch.outputs.data());
  }));
  return batch.present();
}

size_t longest_prefix(const Namespace& ns, nb::handle keys_object) {
  const Keys keys(keys_object, "keys");
  size_t length = 0;
  check(ns.pool->run([&](bh_pool* pool) {
    return bh_longest_prefix(pool, ns.id, keys.data(), keys.size(), &length);
  }));
  return length;
}

void touch(const Namespace& ns, nb::handle keys_object) {
  const Keys keys(keys_object, "keys");
  check(
      ns.pool->run([&](bh_pool* pool) { return bh_touch(pool, ns.id, keys.data(), keys.size()); }));
}

}  // namespace

bh_put_options put_options(const Buffers<bh_const_iovec>& metadata, size_t item, size_t position,
                           const std::optional<bh_attributes>& attributes) {
  const bh_const_iovec& part = metadata.only_part(item, position);
  return {.struct_bytes = sizeof(bh_put_options),
          .user_metadata = part.size_bytes == 0 ? nullptr : part.data,
          .user_bytes = part.size_bytes,
          .attributes = attributes ? &*attributes : nullptr};
}

std::optional<bh_attributes> attributes_argument(nb::handle attributes) {
  if (attributes.is_none()) return std::nullopt;
  return attributes_struct(attributes);
}

PutBatch::PutBatch(nb::handle keys_object, nb::handle values_object, nb::handle metadata_object,
                   nb::handle attributes_of_all)
    : keys(keys_object, "keys") {
  attributes = attributes_argument(attributes_of_all);
  const Items value_items(values_object, "values");
  check_length("values", value_items.size(), keys.size());
  for (size_t i = 0; i < keys.size(); ++i) values.append(value_items[i], i);
  if (!metadata_object.is_none()) {
    const Items metadata_items(metadata_object, "user_metadata");
    check_length("user_metadata", metadata_items.size(), keys.size());
    for (size_t i = 0; i < keys.size(); ++i) {
      metadata.append(metadata_items[i], i);
      options.push_back(put_options(metadata, i, i, attributes));
    }
  } else if (attributes) {
    options.push_back({.struct_bytes = sizeof(bh_put_options), .attributes = &*attributes});
  }
  items.reserve(keys.size());
  for (size_t i = 0; i < keys.size(); ++i)
    items.push_back({.key = keys[i],
                     .value = values.parts(i),
                     .value_count = values.part_count(i),
                     .options = options.empty() ? nullptr : &options[options.size() == 1 ? 0 : i],
                     .status = BH_CANCELLED});
}

GetBatch::GetBatch(nb::handle keys_object, nb::handle buffers_object) : keys(keys_object, "keys") {
  const Items buffer_items(buffers_object, "buffers");
  check_length("buffers", buffer_items.size(), keys.size());
  for (size_t i = 0; i < keys.size(); ++i) buffers.append(buffer_items[i], i);
  items.reserve(keys.size());
  for (size_t i = 0; i < keys.size(); ++i)
    items.push_back({.key = keys[i],
                     .buffers = buffers.parts(i),
                     .buffer_count = buffers.part_count(i),
                     .status = BH_CANCELLED});
}

nb::object GetBatch::lengths() const {
  nb::list list;
  for (const bh_get_item& item : items) list.append(item.length_bytes);
  return list;
}

nb::object GetBatch::results() const {
  nb::list list;
  nb::object last;  // most results of a batch are equal, and one object serves for them
  for (size_t i = 0; i < items.size(); ++i) {
    const bool same = i != 0 && items[i].status == items[i - 1].status &&
                      items[i].length_bytes == items[i - 1].length_bytes;
    if (!same) last = get_result(items[i].status, items[i].length_bytes);
    list.append(last);
  }
  return list;
}

void bind_values(nb::class_<Namespace>& ns) {
  ns.def("put", &put, any("key"), any("value"), nb::kw_only(),
         any("user_metadata") = nb::bytes("", 0), nb::arg("attributes") = nb::none())
      .def("get", &get, any("key"))
      .def("get_into", &get_into, any("key"), any("buffers"))
      .def("get_planes", &get_planes, any("key"), any("planes"), any("buffers"))
      .def("get_stored", &get_stored, any("key"), any("buffer"))
      .def("exists", &exists, any("keys"))
      .def("longest_prefix", &longest_prefix, any("keys"))
      .def("touch", &touch, any("keys"))
      .def("remove", &remove, any("key"))
      .def("put_batch", &put_batch, any("keys"), any("values"), nb::kw_only(),
           nb::arg("user_metadata") = nb::none(), nb::arg("attributes") = nb::none())
      .def("get_batch", &get_batch, any("keys"), any("buffers"))
      .def("remove_batch", &remove_batch, any("keys"));
}

}  // namespace bowhead::python
