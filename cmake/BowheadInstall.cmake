# SPDX-License-Identifier: Apache-2.0
# Installs libbowhead.so, its headers, and the files with which pkg-config and find_package(bowhead)
# find them wherever the prefix is moved. The library needs no other library at link time, so the
# exported target is the whole package configuration.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

# The targets that tools/run builds: enough for `cmake --install`.
add_custom_target(bowhead_installed DEPENDS bowhead_shared)
if(TARGET bowhead)
  add_dependencies(bowhead_installed bowhead)
endif()

set_target_properties(bowhead_shared PROPERTIES EXPORT_NAME bowhead)
install(TARGETS bowhead_shared EXPORT bowhead
  LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}"
  INCLUDES DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}")
install(DIRECTORY "${PROJECT_SOURCE_DIR}/include/bowhead"
  DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}" FILES_MATCHING PATTERN "*.h")

set(package_folder "${CMAKE_INSTALL_LIBDIR}/cmake/bowhead")
install(EXPORT bowhead NAMESPACE bowhead:: FILE bowheadConfig.cmake
  DESTINATION "${package_folder}")
write_basic_package_version_file("${PROJECT_BINARY_DIR}/bowheadConfigVersion.cmake"
  COMPATIBILITY SameMinorVersion)
install(FILES "${PROJECT_BINARY_DIR}/bowheadConfigVersion.cmake" DESTINATION "${package_folder}")

# pkg-config knows the folder of the .pc file; all paths are relative to it.
set(pc_folder "${CMAKE_INSTALL_LIBDIR}/pkgconfig")
file(RELATIVE_PATH pc_to_prefix "/${pc_folder}" "/")
configure_file("${CMAKE_CURRENT_LIST_DIR}/bowhead.pc.in" "${PROJECT_BINARY_DIR}/bowhead.pc" @ONLY)
install(FILES "${PROJECT_BINARY_DIR}/bowhead.pc" DESTINATION "${pc_folder}")
