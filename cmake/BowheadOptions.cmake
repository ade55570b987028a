# SPDX-License-Identifier: Apache-2.0
# Flags for every target of the project, and the optional parts as AUTO / ON / OFF.
#
# AUTO: built if found, else x_none.cpp. ON: an error if not found. OFF: x_none.cpp.

find_package(PkgConfig REQUIRED)
find_package(Threads REQUIRED)
pkg_check_modules(XXHASH REQUIRED IMPORTED_TARGET libxxhash)
find_package(fmt REQUIRED)

# Linked PRIVATE by every target through bowhead::flags; never installed.
add_library(bowhead_flags INTERFACE)
add_library(bowhead::flags ALIAS bowhead_flags)
target_compile_features(bowhead_flags INTERFACE cxx_std_20 c_std_11)
# Options{.size_bytes = n} means that the other members take their defaults: no warning about that.
# Not for nvcc, which does not know these flags.
target_compile_options(bowhead_flags INTERFACE "$<$<COMPILE_LANGUAGE:C,CXX>:\
-Wall;-Wextra;-Wshadow;-Wconversion;-Wno-sign-conversion;-Wno-missing-field-initializers;\
-fno-strict-aliasing>")
target_include_directories(bowhead_flags INTERFACE
  "${PROJECT_SOURCE_DIR}" "${PROJECT_SOURCE_DIR}/include")
option(BOWHEAD_WERROR "Treat warnings as errors (presets set it)" OFF)
if(BOWHEAD_WERROR)
  target_compile_options(bowhead_flags INTERFACE
    "$<$<COMPILE_LANGUAGE:C,CXX>:-Werror;-Wno-error=tsan>")
endif()

set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_C_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE RelWithDebInfo CACHE STRING "" FORCE)
endif()

# bowhead_optional(NAME pkg-config-module "what it is for") sets BOWHEAD_HAVE_<NAME>, and defines
# PkgConfig::<NAME> if that is ON.
function(bowhead_optional name module purpose)
  set(BOWHEAD_WITH_${name} AUTO CACHE STRING "${purpose}: AUTO, ON or OFF")
  set_property(CACHE BOWHEAD_WITH_${name} PROPERTY STRINGS AUTO ON OFF)
  set(found OFF)
  if(NOT BOWHEAD_WITH_${name} STREQUAL "OFF")
    pkg_check_modules(${name} QUIET IMPORTED_TARGET GLOBAL ${module})
    if(${name}_FOUND)
      set(found ON)
    elseif(BOWHEAD_WITH_${name} STREQUAL "ON")
      message(FATAL_ERROR "BOWHEAD_WITH_${name}=ON, but pkg-config does not find ${module}")
    endif()
  endif()
  set(BOWHEAD_HAVE_${name} ${found} PARENT_SCOPE)
  message(STATUS "bowhead: ${purpose} (${module}): ${found}")
endfunction()

bowhead_optional(LIBPMEM2 libpmem2 "file: media through libpmem2")
bowhead_optional(LIBNUMA numa "numa: media through libnuma")
bowhead_optional(LIBCXL libcxl "health of CXL devices through libcxl")
