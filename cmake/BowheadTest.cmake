# SPDX-License-Identifier: Apache-2.0
# bowhead_test(): one GoogleTest executable; ctest counts each of its cases.
#
#   bowhead_test(NAME pool_lease_test
#     SOURCES lease_test.cpp
#     LIBS    bowhead::pool
#     LABELS  unit                # one of: unit contract crash fuzz e2e chaos sim
#     TIMEOUT 60)                 # seconds for one case, without sanitizers; default 60
#
# Each case runs in its own process, so a crash costs one case and not those after it, and
# GTEST_SKIP() is reported as skipped. Cases are listed just before ctest runs, not while building.
# GoogleTest's main() is linked unless a source defines one; that one must call InitGoogleTest.
#
# bowhead_test_properties(): label and limit of a test that add_test() made, and other properties.
#
#   bowhead_test_properties(ndp.check LABELS unit TIMEOUT 120 ENVIRONMENT BOWHEAD_ISA=avx2)

include(GoogleTest)
find_package(GTest REQUIRED)

# The label qemu is for tests that add_test() makes: tests/qemu.
set(BOWHEAD_TEST_LABELS unit contract crash fuzz e2e chaos sim)
set(BOWHEAD_TEST_TIMEOUT_FACTOR 1 CACHE STRING "Multiplies TIMEOUT; sanitizer presets raise it")

function(bowhead_test)
  cmake_parse_arguments(PARSE_ARGV 0 arg "" "NAME;TIMEOUT" "SOURCES;LIBS;LABELS")
  if(NOT arg_NAME OR NOT arg_SOURCES OR arg_UNPARSED_ARGUMENTS)
    message(FATAL_ERROR "bowhead_test(${ARGV}): needs NAME, SOURCES, LABELS; takes LIBS, TIMEOUT")
  endif()
  # One label: gtest_discover_tests() of CMake 3.25 loses the arguments after a list-valued
  # property.
  if(NOT arg_LABELS IN_LIST BOWHEAD_TEST_LABELS)
    message(FATAL_ERROR "${arg_NAME}: LABELS ${arg_LABELS} is not one of ${BOWHEAD_TEST_LABELS}")
  endif()
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 60)
  endif()
  math(EXPR timeout "${arg_TIMEOUT} * ${BOWHEAD_TEST_TIMEOUT_FACTOR}")

  add_executable(${arg_NAME} ${arg_SOURCES})
  target_link_libraries(${arg_NAME} PRIVATE
    ${arg_LIBS} bowhead::flags GTest::gtest GTest::gtest_main)
  gtest_discover_tests(${arg_NAME}
    TEST_PREFIX "${arg_NAME}."
    DISCOVERY_MODE PRE_TEST
    DISCOVERY_TIMEOUT 60
    PROPERTIES LABELS ${arg_LABELS} TIMEOUT ${timeout})
endfunction()

function(bowhead_test_properties name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "TIMEOUT" "")
  math(EXPR timeout "${arg_TIMEOUT} * ${BOWHEAD_TEST_TIMEOUT_FACTOR}")
  set_tests_properties("${name}" PROPERTIES TIMEOUT ${timeout} ${arg_UNPARSED_ARGUMENTS})
endfunction()
