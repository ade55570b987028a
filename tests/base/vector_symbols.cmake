# SPDX-License-Identifier: Apache-2.0
# Fails if an object of a vector_*.cpp, planes_*.cpp or kernels_*.cpp file among OBJECTS exports a
# symbol besides its table.
list(FILTER OBJECTS INCLUDE REGEX "/(vector|planes|kernels)_[a-z0-9]+\\.cpp\\.o$")
if(NOT OBJECTS)
  message(FATAL_ERROR "no vector objects given")
endif()
foreach(object IN LISTS OBJECTS)
  execute_process(COMMAND "${NM}" --extern-only --defined-only --format=posix "${object}"
    OUTPUT_VARIABLE symbols COMMAND_ERROR_IS_FATAL ANY)
  string(REGEX MATCHALL "[^\n]+" lines "${symbols}")
  list(FILTER lines EXCLUDE REGEX "^(__odr_asan|DW\\.ref)\\.| [uV] ") # sanitizers' and weak data
  list(LENGTH lines count)
  if(NOT count EQUAL 1 OR NOT lines MATCHES "k(Vector|Plane|)Kernels")
    message(FATAL_ERROR "${object} must define its table only, but defines:\n${symbols}")
  endif()
endforeach()
