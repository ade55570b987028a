# SPDX-License-Identifier: Apache-2.0
# cmake -DSOURCE_DIR=... -DOUTPUT=... -P commit.cmake
# Writes a header with the commit of a checkout; leaves it alone if it is already up to date.
cmake_minimum_required(VERSION 3.25)
set(commit "unknown")
find_program(git git)
if(git AND EXISTS "${SOURCE_DIR}/.git")
  execute_process(COMMAND "${git}" -C "${SOURCE_DIR}" describe --always --dirty --tags
    OUTPUT_VARIABLE described OUTPUT_STRIP_TRAILING_WHITESPACE RESULT_VARIABLE result ERROR_QUIET)
  if(result EQUAL 0)
    set(commit "${described}")
  endif()
endif()
file(CONFIGURE OUTPUT "${OUTPUT}" CONTENT "#define BOWHEAD_COMMIT \"${commit}\"\n")
