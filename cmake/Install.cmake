# What `cmake --install` gives: the program, the SDK library with its headers and CMake files, bundled plugins, template, configs, docs.
include(CMakePackageConfigHelpers)
set(CMAKE_INSTALL_DOCDIR ${CMAKE_INSTALL_DATAROOTDIR}/doc/meshwright)
set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/Meshwright)

# The wheel is not ours to install. What runs looks for it in lib/meshwright/torch, a folder or a link to one, then where it lay when this was built.
set_target_properties(meshwright_sdk PROPERTIES EXPORT_NAME sdk)
set_target_properties(meshwright_runtime PROPERTIES EXPORT_NAME runtime INSTALL_RPATH "${MESHWRIGHT_INSTALL_RPATH}")
set_target_properties(meshwright_engine PROPERTIES EXPORT_NAME engine INSTALL_RPATH "${MESHWRIGHT_INSTALL_RPATH}")
add_library(meshwright_condition_wait OBJECT cmake/condition_wait.cpp)
foreach(target meshwright meshwright_runtime meshwright_engine meshwright_c meshwright_jsonl)
  target_sources(${target} PRIVATE $<TARGET_OBJECTS:meshwright_condition_wait>)
endforeach()
install(TARGETS meshwright RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
set_target_properties(meshwright_testing PROPERTIES EXPORT_NAME testing)
install(TARGETS meshwright_sdk meshwright_runtime meshwright_engine meshwright_c meshwright_testing EXPORT MeshwrightTargets
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} NAMELINK_COMPONENT dev ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT dev)
foreach(strategy ddp fsdp2 megatron_fsdp moe_ep jsonl)
  install(TARGETS meshwright_${strategy} LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}/meshwright/plugins)
endforeach()
install(DIRECTORY sdk/include/meshwright engine/include/meshwright apps/capi/include/meshwright DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT dev)
install(EXPORT MeshwrightTargets NAMESPACE Meshwright:: DESTINATION ${package_dir} COMPONENT dev)
install(FILES sdk/cmake/MeshwrightPlugin.cmake sdk/cmake/LibTorch.cmake sdk/cmake/abi_probe.cpp sdk/cmake/plugin.map
  DESTINATION ${package_dir} COMPONENT dev)
configure_package_config_file(sdk/cmake/MeshwrightConfig.cmake.in ${PROJECT_BINARY_DIR}/package/MeshwrightConfig.cmake INSTALL_DESTINATION ${package_dir})
# Before 1.0 a minor version may break the C++ interface, which the epoch tells apart in any case.
write_basic_package_version_file(${PROJECT_BINARY_DIR}/package/MeshwrightConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/package/MeshwrightConfig.cmake ${PROJECT_BINARY_DIR}/package/MeshwrightConfigVersion.cmake DESTINATION ${package_dir} COMPONENT dev)

# The build folder is a package too, so that what `plugins new` says works before anything is installed.
set(build_package ${PROJECT_BINARY_DIR}/lib/cmake/Meshwright)
configure_package_config_file(sdk/cmake/MeshwrightConfig.cmake.in ${build_package}/MeshwrightConfig.cmake
  INSTALL_DESTINATION lib/cmake/Meshwright INSTALL_PREFIX ${PROJECT_BINARY_DIR})
configure_file(${PROJECT_BINARY_DIR}/package/MeshwrightConfigVersion.cmake ${build_package}/MeshwrightConfigVersion.cmake COPYONLY)
foreach(file cmake/MeshwrightPlugin.cmake cmake/LibTorch.cmake cmake/abi_probe.cpp cmake/plugin.map)
  get_filename_component(name ${file} NAME)
  configure_file(sdk/${file} ${build_package}/${name} COPYONLY)
endforeach()
if(MESHWRIGHT_RUNNING)
  add_dependencies(bundled_plugins meshwright_testing)  # what a plugin's own tests link
endif()
if(TARGET meshwright_conformance_training)
  add_dependencies(bundled_plugins meshwright_conformance_training)  # what `plugins check` loads
endif()
export(EXPORT MeshwrightTargets NAMESPACE Meshwright:: FILE ${build_package}/MeshwrightTargets.cmake)
# Older build folders have half a package at their top, which would be found first.
file(REMOVE ${PROJECT_BINARY_DIR}/MeshwrightConfig.cmake ${PROJECT_BINARY_DIR}/MeshwrightConfigVersion.cmake)
foreach(template template template_data template_model)
  install(DIRECTORY sdk/kit/${template}/ DESTINATION ${CMAKE_INSTALL_DATADIR}/meshwright/${template} COMPONENT dev)
endforeach()
install(DIRECTORY configs DESTINATION ${CMAKE_INSTALL_DATADIR}/meshwright)
# Modules find the tree that they lie in. A wheel has them in its own place.
install(DIRECTORY python/meshwright DESTINATION ${CMAKE_INSTALL_DATADIR}/meshwright/python FILES_MATCHING PATTERN "*.py" PATTERN "py.typed"
  PATTERN "__pycache__" EXCLUDE)
# In the tree's shape, so that their links lead somewhere.
install(DIRECTORY docs DESTINATION ${CMAKE_INSTALL_DOCDIR} FILES_MATCHING PATTERN "*.md" PATTERN "*.svg")
install(DIRECTORY examples DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT dev
  PATTERN runs EXCLUDE PATTERN build EXCLUDE PATTERN build.log EXCLUDE  # what was tried in the tree
  PATTERN "*.sh" PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)
install(DIRECTORY plugins DESTINATION ${CMAKE_INSTALL_DOCDIR} FILES_MATCHING PATTERN "README.md" PATTERN tests EXCLUDE PATTERN fully_sharded EXCLUDE)
install(DIRECTORY bench DESTINATION ${CMAKE_INSTALL_DOCDIR} FILES_MATCHING PATTERN "__pycache__" EXCLUDE PATTERN "README.md" PATTERN "results/*.txt")
# Manual pages and what shells complete: the program's own tables say what is in them, so it writes them itself.
set(written ${PROJECT_BINARY_DIR}/written)
install(CODE "
  file(MAKE_DIRECTORY ${written})
  execute_process(COMMAND \"$<TARGET_FILE:meshwright>\" man --dir ${written}/man1 COMMAND_ERROR_IS_FATAL ANY)
  foreach(shell bash zsh)
    execute_process(COMMAND \"$<TARGET_FILE:meshwright>\" completion \${shell} OUTPUT_FILE ${written}/\${shell} COMMAND_ERROR_IS_FATAL ANY)
  endforeach()")
install(DIRECTORY ${written}/man1/ DESTINATION ${CMAKE_INSTALL_MANDIR}/man1 FILES_MATCHING PATTERN "*.1")
install(FILES ${written}/bash DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions RENAME meshwright)
install(FILES ${written}/zsh DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/vendor-completions RENAME _meshwright)
install(FILES LICENSE README.md CHANGELOG.md CONTRIBUTING.md AGENTS.md llms.txt DESTINATION ${CMAKE_INSTALL_DOCDIR})
include(Package)
