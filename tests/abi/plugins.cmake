# Six plugins against the headers of the freeze that lie beside them, linked with the libraries of today: tools/abi.sh puts this into the archive.
cmake_minimum_required(VERSION 3.25)
project(abi VERSION 1.0.0 LANGUAGES CXX)
find_package(Meshwright REQUIRED)  # -DCMAKE_PREFIX_PATH=<the build folder of today>
find_package(ZLIB REQUIRED)
find_package(Boost REQUIRED COMPONENTS json)
set_property(TARGET Meshwright::sdk PROPERTY INTERFACE_INCLUDE_DIRECTORIES ${CMAKE_CURRENT_SOURCE_DIR}/include)
include(cmake/MeshwrightPlugin.cmake)
meshwright_add_plugin(my_strategy
  SOURCES policy/my_strategy.cpp
  STRATEGIES my_strategy
  OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR})
meshwright_add_plugin(ring_zero
  SOURCES model/ring_zero.cpp model/buckets.cpp
  STRATEGIES ring_zero
  RUNTIME model/ring_zero_runtime.cpp model/ring_model.cpp model/buckets.cpp
  OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR})
meshwright_add_plugin(gpt2
  SOURCES family/gpt2.cpp family/sizes.cpp
  MODELS gpt2
  LIBRARIES Boost::json
  RUNTIME family/net.cpp family/sizes.cpp
  RUNTIME_LIBRARIES Meshwright::runtime Boost::json
  OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR})
meshwright_add_plugin(diloco
  SOURCES around/diloco.cpp
  STRATEGIES diloco local_sgd
  RUNTIME around/outer.cpp
  OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR})
meshwright_add_plugin(encoder
  SOURCES encoder/encoder.cpp
  MODELS encoder
  RUNTIME encoder/net.cpp
  OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR})
meshwright_add_plugin(jsonl_gz
  SOURCES data/jsonl_gz.cpp data/gzip_index.cpp data/rows.cpp
  DATASETS jsonl_gz
  LIBRARIES ZLIB::ZLIB Boost::json
  OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR})
