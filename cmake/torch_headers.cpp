// Nothing: the target of cmake/torch_headers.h needs a source (meshwright_join in MeshwrightBuild.cmake).
