// Nothing: the target of torch_headers.h needs a source (meshwright_join in
// MeshwrightBuild.cmake).
