# What `cpack` in the build folder gives: a tar.gz with the libraries of other projects (package/bundle.sh), and Debian packages: meshwright (what runs) and
# meshwright-dev (headers, CMake files, the template). LibTorch is not in them: docs/install.md says where it is looked for.
set(CPACK_PACKAGE_NAME meshwright)
# No mail is read: a name under .invalid is nobody's (RFC 2606). Who hands packages on puts an address of their own here.
set(CPACK_PACKAGE_CONTACT "Meshwright contributors <noreply@meshwright.invalid>" CACHE STRING "Who answers for the packages: NAME <ADDRESS>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "distributed training on LibTorch")
set(CPACK_VERBATIM_VARIABLES ON)
set(CPACK_GENERATOR TGZ DEB)
set(CPACK_STRIP_FILES ON)
set(CPACK_INSTALL_DEFAULT_DIRECTORY_PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)
set(CPACK_COMPONENTS_ALL runtime dev)
set(CPACK_PRE_BUILD_SCRIPTS ${PROJECT_BINARY_DIR}/package/finish_tree.cmake)
configure_file(cmake/package/finish_tree.cmake.in ${PROJECT_BINARY_DIR}/package/finish_tree.cmake @ONLY)

set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
set(CPACK_DEBIAN_RUNTIME_PACKAGE_NAME meshwright)
set(CPACK_DEBIAN_RUNTIME_DESCRIPTION "Plans a training job on paper, judges strategy plugins before any of their
code runs, and trains and generates on LibTorch 2.11, which is not part of
this package: /usr/lib/meshwright/torch is a link to its folder.")
set(CPACK_DEBIAN_RUNTIME_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS ${PROJECT_BINARY_DIR}/lib ${MESHWRIGHT_TORCH_DIR}/lib ${MESHWRIGHT_ARROW_DIR})
set(CPACK_DEBIAN_RUNTIME_PACKAGE_CONTROL_EXTRA ${PROJECT_SOURCE_DIR}/cmake/package/triggers ${PROJECT_BINARY_DIR}/package/shlibs)
file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/package/shlibs CONTENT
  "libmeshwright_c 1 meshwright (= ${PROJECT_VERSION})\nlibmeshwright_engine 1 meshwright (= ${PROJECT_VERSION})\nlibmeshwright_runtime 1 meshwright (= ${PROJECT_VERSION})\nlibmeshwright_sdk 1 meshwright (= ${PROJECT_VERSION})\n")
set(CPACK_DEBIAN_DEV_PACKAGE_NAME meshwright-dev)
set(CPACK_DEBIAN_DEV_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_DEV_PACKAGE_DEPENDS "meshwright (= ${PROJECT_VERSION}), g++, cmake, make | ninja-build")
set(CPACK_DEBIAN_DEV_DESCRIPTION "Headers, CMake files and the template of strategy plugins for Meshwright, and
what an application links that trains a module of its own with it.")
include(CPack)
