# meshwright_add_plugin(NAME SOURCES file... [STRATEGIES name...] [MODELS name...] [DATASETS name...] [LIBRARIES target...]
#                       [OUTPUT_DIRECTORY folder] [RUNTIME file... [RUNTIME_LIBRARIES target...]])
#
# Builds a plugin: the module library libmeshwright_NAME.so that exports its descriptor and its build facts and nothing else.
# STRATEGIES, MODELS and DATASETS list every name and alias the library has, of at least one sort; the engine reads them from the file without
# loading it.
# RUNTIME: sources of the running half (meshwright/parallel/plugin_runtime.h), which becomes meshwright_NAME_runtime.so beside it and is loaded when a
# model is first parallelized or made: then SOURCES plan without LibTorch. RUNTIME_LIBRARIES: what it links (default: Meshwright::runtime). Without
# RUNTIME one library does both.
# The sources may use MESHWRIGHT_PLUGIN_VERSION, the version of the project() as a string.
# OUTPUT_DIRECTORY: where the library goes (default: lib/meshwright/plugins in the build folder).
#
# The facts come from a small program built with the plugin's own compiler and flags, so that they are true for this build.
set(MESHWRIGHT_SDK_CMAKE_DIR ${CMAKE_CURRENT_LIST_DIR})

# meshwright_add_abi_marker(TARGET KIND [STRATEGIES] [KEY=VALUE...]): adds to TARGET a source with this build's facts, and those given.
# KIND: plugin | engine. STRATEGIES: with commas, or - for none.
function(meshwright_add_abi_marker target kind)
  if(NOT TARGET meshwright_abi_probe)
    add_executable(meshwright_abi_probe ${MESHWRIGHT_SDK_CMAKE_DIR}/abi_probe.cpp)
    target_include_directories(meshwright_abi_probe PRIVATE $<TARGET_PROPERTY:Meshwright::sdk,INTERFACE_INCLUDE_DIRECTORIES>)
    target_link_libraries(meshwright_abi_probe PRIVATE meshwright::torch_cpu meshwright::c10)
    target_compile_features(meshwright_abi_probe PRIVATE cxx_std_20)
    target_link_options(meshwright_abi_probe PRIVATE -Wl,--as-needed)
    target_compile_definitions(meshwright_abi_probe PRIVATE
      MESHWRIGHT_FACT_TORCH_VERSION="${MESHWRIGHT_TORCH_VERSION}" MESHWRIGHT_FACT_TORCH_CUDA="${MESHWRIGHT_TORCH_CUDA}"
      MESHWRIGHT_FACT_C10D="${MESHWRIGHT_TORCH_C10D}" MESHWRIGHT_FACT_BUILD_TYPE="$<CONFIG>" MESHWRIGHT_FACT_ARCH="${CMAKE_SYSTEM_PROCESSOR}")
    set_target_properties(meshwright_abi_probe PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/abi)
  endif()
  set(marker ${CMAKE_CURRENT_BINARY_DIR}/${target}_abi_marker.cpp)
  set(strategies "-")
  list(POP_FRONT ARGN strategies)
  add_custom_command(OUTPUT ${marker}
    COMMAND $<TARGET_FILE:meshwright_abi_probe> ${kind} "${strategies}" ${marker} ${ARGN}
    DEPENDS meshwright_abi_probe VERBATIM COMMENT "Recording the build facts of ${target}")
  target_sources(${target} PRIVATE ${marker})
endfunction()

# A module library of a plugin: hidden symbols but for those of plugin.map, and the facts of its build.
# NAMES: what meshwright_add_abi_marker() takes behind KIND.
function(meshwright_add_plugin_library target output folder names)
  cmake_parse_arguments(arg "" "" "SOURCES;LIBRARIES" ${ARGN})
  add_library(${target} MODULE ${arg_SOURCES})
  # stdc++ first: LibTorch exports template instantiations of the C++ library, and would else be needed by every plugin for their sake.
  target_link_libraries(${target} PRIVATE Meshwright::sdk stdc++ meshwright::torch_cpu meshwright::c10 ${arg_LIBRARIES})
  target_compile_features(${target} PRIVATE cxx_std_20)
  if(PROJECT_VERSION)
    target_compile_definitions(${target} PRIVATE MESHWRIGHT_PLUGIN_VERSION="${PROJECT_VERSION}")
  endif()
  set_target_properties(${target} PROPERTIES
    PREFIX "" OUTPUT_NAME ${output} LIBRARY_OUTPUT_DIRECTORY ${folder}
    CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON
    # Installed, a bundled plugin lies in lib/meshwright/plugins, two folders below the SDK library; another one may lie anywhere.
    INSTALL_RPATH "$ORIGIN/../..;$ORIGIN/../torch/lib;${MESHWRIGHT_TORCH_DIR}/lib" INSTALL_RPATH_USE_LINK_PATH ON
    LINK_DEPENDS ${MESHWRIGHT_SDK_CMAKE_DIR}/plugin.map)
  target_link_options(${target} PRIVATE -Wl,--as-needed -Wl,-z,nodelete -Wl,--version-script=${MESHWRIGHT_SDK_CMAKE_DIR}/plugin.map)
  if(NOT CMAKE_CXX_FLAGS MATCHES "-fsanitize" AND NOT MESHWRIGHT_SANITIZE)
    target_link_options(${target} PRIVATE -Wl,-z,defs)  # a sanitizer's runtime lives in the program
  endif()
  meshwright_add_abi_marker(${target} plugin ${names})
endfunction()

function(meshwright_add_plugin name)
  cmake_parse_arguments(arg "" "OUTPUT_DIRECTORY" "SOURCES;STRATEGIES;MODELS;DATASETS;LIBRARIES;RUNTIME;RUNTIME_LIBRARIES" ${ARGN})
  if(NOT name MATCHES "^[a-z][a-z0-9_]*$")
    message(FATAL_ERROR "meshwright_add_plugin: \"${name}\" is not a plugin name (a-z, 0-9 and _, a letter first)")
  endif()
  if(NOT arg_SOURCES OR NOT (arg_STRATEGIES OR arg_MODELS OR arg_DATASETS))
    message(FATAL_ERROR "meshwright_add_plugin(${name}): SOURCES are needed, and STRATEGIES, MODELS or DATASETS")
  endif()
  list(JOIN arg_STRATEGIES "," names)
  if(NOT names)
    set(names "-")  # none: an empty item would get lost
  endif()
  foreach(sort MODELS DATASETS)
    if(arg_${sort})
      string(TOLOWER ${sort} fact)
      list(JOIN arg_${sort} "," joined)
      list(APPEND names "info.${fact}=${joined}")
    endif()
  endforeach()
  if(NOT arg_OUTPUT_DIRECTORY)
    set(arg_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/lib/meshwright/plugins)
  endif()
  set(target meshwright_${name})
  meshwright_add_plugin_library(${target} lib${target} ${arg_OUTPUT_DIRECTORY} "${names}" SOURCES ${arg_SOURCES} LIBRARIES ${arg_LIBRARIES})
  if(arg_RUNTIME)
    if(NOT arg_RUNTIME_LIBRARIES)
      set(arg_RUNTIME_LIBRARIES Meshwright::runtime)
    endif()
    meshwright_add_plugin_library(${target}_runtime ${target}_runtime ${arg_OUTPUT_DIRECTORY} "${names}"
      SOURCES ${arg_RUNTIME} LIBRARIES ${arg_RUNTIME_LIBRARIES})
    target_compile_definitions(${target} PRIVATE MESHWRIGHT_PLUGIN_RUNTIME="${target}_runtime.so")
    add_dependencies(${target} ${target}_runtime)
  endif()
endfunction()
