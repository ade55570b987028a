// SPDX-License-Identifier: Apache-2.0
// Release of the GIL during calls of the C ABI.
#pragma once

#include <nanobind/nanobind.h>
#include <unistd.h>

#include <type_traits>
#include <utility>

namespace bowhead::python {

/// Takes the GIL back. When the interpreter has ended meanwhile, Python before 3.14 ends the thread
/// by unwinding its stack, which frames of C++ answer by ending the process; so such a thread, a
/// daemon, stops here instead, as it does in later versions.
inline void take_gil(PyThreadState* state) {
  try {
    PyEval_RestoreThread(state);
  } catch (...) {
    while (true) pause();
  }
}

/// Calls body() without the GIL. It must throw nothing.
template <class Body>
auto without_gil(Body&& body) {
  PyThreadState* const state = PyEval_SaveThread();
  if constexpr (std::is_void_v<decltype(body())>) {
    std::forward<Body>(body)();
    take_gil(state);
  } else {
    const auto result = std::forward<Body>(body)();
    take_gil(state);
    return result;
  }
}

}  // namespace bowhead::python
