# Compiler settings for our own code. Warnings are errors here; the installed package forces nothing on users.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()

set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
set(CMAKE_LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/lib)
set(CMAKE_ARCHIVE_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/lib)
set(MESHWRIGHT_PLUGIN_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/lib/meshwright/plugins)

find_program(MESHWRIGHT_CCACHE ccache)
if(MESHWRIGHT_CCACHE)
  set(CMAKE_C_COMPILER_LAUNCHER ${MESHWRIGHT_CCACHE})
  set(CMAKE_CXX_COMPILER_LAUNCHER ${MESHWRIGHT_CCACHE})
endif()
find_program(MESHWRIGHT_MOLD mold)
if(MESHWRIGHT_MOLD)
  add_link_options(-fuse-ld=mold)
endif()

# What is not used is not loaded: planning starts without LibTorch.
add_link_options(-Wl,--as-needed)

add_library(meshwright_warnings INTERFACE)
# GCC 12 sees an overlap in every `"x" + std::string` (its bug 105651).
target_compile_options(meshwright_warnings INTERFACE $<$<CXX_COMPILER_ID:GNU>:-Wno-restrict>
  -Wall -Wextra -Wpedantic -Wshadow=local -Wnon-virtual-dtor -Woverloaded-virtual -Wimplicit-fallthrough -Werror)

if(MESHWRIGHT_SANITIZE)
  # What a sanitizer adds hides from GCC that LibTorch's optional arguments are set.
  target_compile_options(meshwright_warnings INTERFACE $<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>)
endif()
foreach(sanitizer IN LISTS MESHWRIGHT_SANITIZE)
  add_compile_options(-fsanitize=${sanitizer} -fno-omit-frame-pointer)
  add_link_options(-fsanitize=${sanitizer})
  if(sanitizer STREQUAL "undefined")
    add_compile_options(-fno-sanitize-recover=undefined)
  endif()
endforeach()

# The headers of LibTorch, and those of Boost.JSON, toml++ and doctest, take longer to compile than the lines that include them.
# meshwright_join(TARGET): with MESHWRIGHT_JOIN = N, every N sources of the target are compiled as one, which shortens a build from
# nothing; ./quickstart and ./check ask for it. Names in such sources differ, also inside unnamed namespaces; a test has a
# namespace of its file's name. TEST: doctest's CHECK wins over the one of LibTorch's logging, which must not be
# included after it. TORCH: the most of LibTorch's headers (cmake/torch_headers.h) are compiled once, for all such targets of the same flags.
set(MESHWRIGHT_JOIN 0 CACHE STRING "Compile this many sources of a target as one; 0: each alone")
function(meshwright_torch_headers target kind)
  set(headers meshwright_headers_of_${kind})
  # ccache finds nothing again without the first. GCC 12 sees overflows in `"x" + std::string` (its bug 105651 again).
  set(options -fpch-preprocess -Wno-stringop-overflow -Wno-array-bounds)
  if(NOT TARGET ${headers})
    add_library(${headers} OBJECT EXCLUDE_FROM_ALL ${PROJECT_SOURCE_DIR}/cmake/torch_headers.cpp)
    target_link_libraries(${headers} PRIVATE meshwright::torch_headers meshwright_warnings)
    target_precompile_headers(${headers} PRIVATE ${PROJECT_SOURCE_DIR}/cmake/torch_headers.h)
    target_compile_options(${headers} PRIVATE ${options})
    if(kind STREQUAL "tests")
      target_compile_options(${headers} PRIVATE $<$<CONFIG:Release>:-O1> ${CMAKE_CXX_COMPILE_OPTIONS_PIE})  # as programs have it
      set_target_properties(${headers} PROPERTIES POSITION_INDEPENDENT_CODE OFF)
    elseif(kind STREQUAL "threads")
      target_compile_options(${headers} PRIVATE -fopenmp)
    endif()
  endif()
  target_compile_options(${target} PRIVATE ${options})
  set_target_properties(${target} PROPERTIES PRECOMPILE_HEADERS_REUSE_FROM ${headers})
endfunction()
function(meshwright_join target)
  if(NOT MESHWRIGHT_JOIN GREATER 1)
    return()
  endif()
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE ${MESHWRIGHT_JOIN})
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    target_compile_options(${target} PRIVATE -Wno-stringop-overflow -Wno-array-bounds)  # as below
  endif()
  if("TEST" IN_LIST ARGN)
    set_target_properties(${target} PROPERTIES UNITY_BUILD_CODE_BEFORE_INCLUDE "#include <c10/util/Logging.h>")
  endif()
  if("TORCH" IN_LIST ARGN AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    if("TEST" IN_LIST ARGN)
      meshwright_torch_headers(${target} tests)
    else()
      meshwright_torch_headers(${target} libraries)
    endif()
  endif()
endfunction()
# meshwright_precompile(TARGET [TEST | PROGRAM]): the same headers for a target whose few sources are not joined. TEST: a program whose lines are
# compiled as those of a test. PROGRAM: one that is as fast as a library.
function(meshwright_precompile target)
  if(NOT MESHWRIGHT_JOIN GREATER 1 OR NOT CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    return()
  endif()
  if("TEST" IN_LIST ARGN)
    target_compile_options(${target} PRIVATE $<$<CONFIG:Release>:-O1>)
    meshwright_torch_headers(${target} tests)
  else()
    if("PROGRAM" IN_LIST ARGN)
      target_compile_options(${target} PRIVATE -fPIC)  # as the headers have it
    endif()
    meshwright_torch_headers(${target} libraries)
  endif()
endfunction()

# at::parallel_for is a template: without OpenMP in the source that calls it, it is a loop on one thread. The library is the one that
# LibTorch brings, which has the same name and is loaded first.
function(meshwright_threads target)
  target_compile_options(${target} PRIVATE -fopenmp)
  target_link_libraries(${target} PRIVATE -fopenmp)
  get_target_property(headers ${target} PRECOMPILE_HEADERS_REUSE_FROM)
  if(headers)
    meshwright_torch_headers(${target} threads)
  endif()
endfunction()
