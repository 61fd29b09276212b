# Imported targets for the parts of the LibTorch wheel we use. find_package(Torch) would want a CUDA toolkit.
# MESHWRIGHT_DEPS (environment or cache) is the folder that ./quickstart fills; python/torch below it is the wheel.
if(NOT MESHWRIGHT_DEPS)
  if(DEFINED ENV{MESHWRIGHT_DEPS})
    set(MESHWRIGHT_DEPS $ENV{MESHWRIGHT_DEPS})
  else()
    set(MESHWRIGHT_DEPS ${CMAKE_SOURCE_DIR}/.deps)
  endif()
endif()
get_filename_component(MESHWRIGHT_DEPS ${MESHWRIGHT_DEPS} ABSOLUTE)
set(MESHWRIGHT_DEPS ${MESHWRIGHT_DEPS} CACHE PATH "Folder with the LibTorch wheel (python/torch)")
set(MESHWRIGHT_TORCH_DIR ${MESHWRIGHT_DEPS}/python/torch CACHE PATH "The wheel's torch folder: include/, lib/, version.py")
if(NOT EXISTS ${MESHWRIGHT_TORCH_DIR}/lib/libtorch_cpu.so)
  if(EXISTS ${CMAKE_CURRENT_LIST_DIR}/MeshwrightConfig.cmake)  # in a package, and not in the source tree
    message(FATAL_ERROR "LibTorch not found in ${MESHWRIGHT_TORCH_DIR}, nor beside this Meshwright. Name the folder of the torch to use:\n"
      "  -DMESHWRIGHT_TORCH_DIR=\"$(python3 -c 'import torch,os;print(os.path.dirname(torch.__file__))')\"")
  endif()
  message(FATAL_ERROR "LibTorch not found in ${MESHWRIGHT_TORCH_DIR}. Run ./quickstart or ./check --build-only once (it downloads the wheel), "
    "or set MESHWRIGHT_TORCH_DIR to the torch folder of an installed wheel.")
endif()

file(STRINGS ${MESHWRIGHT_TORCH_DIR}/version.py _version REGEX "^__version__")
string(REGEX REPLACE ".*'(.*)'.*" "\\1" MESHWRIGHT_TORCH_VERSION "${_version}")
file(STRINGS ${MESHWRIGHT_TORCH_DIR}/version.py _cuda REGEX "^cuda")
if(_cuda MATCHES "'([0-9.]+)'")
  set(MESHWRIGHT_TORCH_CUDA ${CMAKE_MATCH_1})
else()
  set(MESHWRIGHT_TORCH_CUDA none)
endif()
if(NOT MESHWRIGHT_TORCH_VERSION MATCHES "^2\\.11\\.")
  message(FATAL_ERROR "LibTorch ${MESHWRIGHT_TORCH_VERSION} found in ${MESHWRIGHT_TORCH_DIR}; this version of Meshwright is built for 2.11.")
endif()

if(NOT TARGET meshwright::torch_headers)
  add_library(meshwright::torch_headers INTERFACE IMPORTED GLOBAL)
  target_include_directories(meshwright::torch_headers SYSTEM INTERFACE
    ${MESHWRIGHT_TORCH_DIR}/include ${MESHWRIGHT_TORCH_DIR}/include/torch/csrc/api/include)
endif()
foreach(_lib c10 torch_cpu)
  if(NOT TARGET meshwright::${_lib})
    add_library(meshwright::${_lib} SHARED IMPORTED GLOBAL)
    set_target_properties(meshwright::${_lib} PROPERTIES
      IMPORTED_LOCATION ${MESHWRIGHT_TORCH_DIR}/lib/lib${_lib}.so
      IMPORTED_LINK_DEPENDENT_LIBRARIES ""
      INTERFACE_INCLUDE_DIRECTORIES "${MESHWRIGHT_TORCH_DIR}/include;${MESHWRIGHT_TORCH_DIR}/include/torch/csrc/api/include"
      INTERFACE_SYSTEM_INCLUDE_DIRECTORIES "${MESHWRIGHT_TORCH_DIR}/include;${MESHWRIGHT_TORCH_DIR}/include/torch/csrc/api/include")
  endif()
endforeach()

# Which c10d back ends the wheel was built with (fast: symbol tables only).
if(NOT DEFINED MESHWRIGHT_TORCH_C10D)
  set(_backends "")
  foreach(_pair gloo:torch_cpu nccl:torch_cuda mpi:torch_cpu)
    string(REPLACE ":" ";" _pair ${_pair})
    list(GET _pair 0 _backend)
    list(GET _pair 1 _lib)
    if(EXISTS ${MESHWRIGHT_TORCH_DIR}/lib/lib${_lib}.so)
      string(TOUPPER ${_backend} _name)
      if(_backend STREQUAL "gloo")
        set(_name Gloo)
      endif()
      execute_process(COMMAND sh -c "${CMAKE_NM} -D --defined-only '${MESHWRIGHT_TORCH_DIR}/lib/lib${_lib}.so' | grep -q -m1 'ProcessGroup${_name}C'"
        RESULT_VARIABLE _missing)
      if(_missing EQUAL 0)
        list(APPEND _backends ${_backend})
      endif()
    endif()
  endforeach()
  string(REPLACE ";" "+" _backends "${_backends}")
  set(MESHWRIGHT_TORCH_C10D "${_backends}" CACHE INTERNAL "c10d back ends in the LibTorch wheel")
endif()
