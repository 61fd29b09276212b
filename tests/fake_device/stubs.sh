#!/usr/bin/env bash
# stubs.sh TORCH_LIBRARIES OUT: sources of libraries that LibTorch's import and no test needs: every
# function does nothing and answers 0. OUT/NAME.c and OUT/NAME.map, the version that the names have.
set -euo pipefail
torch=$1 out=$2
mkdir -p "$out"
for name in torch_cuda torch_cuda_linalg torch_nvshmem torch_cpu torch_python c10_cuda caffe2_nvrtc; do
  nm -D --undefined-only "$torch/lib$name.so" | awk '{print $2}'
done | LC_ALL=C sort -u >"$out/imported.txt"

pick() { grep -E "$1" "$out/imported.txt" | sed 's/@.*//' | LC_ALL=C sort -u || true; }

make() {  # make NAME VERSION PATTERN: what matches the pattern is in the library, with that version
  echo "$2 { global: *; };" >"$out/$1.map"
  {
    echo '#include <stdio.h>'
    echo '#include <stdlib.h>'
    echo 'static int say(const char* name, int* said) {'
    echo '  if (!*said && getenv("FAKE_DEVICE_STUBS")) fprintf(stderr, "fake device: stub %s\n", name);'
    echo '  *said = 1;'
    echo '  return 0;'
    echo '}'
    pick "$3" | while read -r function; do
      echo "__attribute__((weak)) int $function(void) { static int said; return say(\"$function\", &said); }"
    done
  } >"$out/$1.c"
}
for library in cublas.so.13 cublasLt.so.13 cudnn.so.9 cufft.so.12 cusolver.so.12 cusparse.so.12 \
    nvrtc.so.13; do
  make "${library%%.*}" "lib$library" "@lib$library\$"
done
make nvshmem_host NVSHMEM '@NVSHMEM$'
make cusparseLt '' '^cusparseLt[A-Za-z0-9]*$'
make curand '' '^curand[A-Za-z]*$'
make cufile '' '^cuFile[A-Za-z]*$'

# What LibTorch imports of the runtime and the fake one does not have. The linker takes these only
# where there is no other.
echo 'libcudart.so.13 { global: cuda*; __cuda*; fake_device_*; local: *; };' >"$out/cudart.map"
{
  echo 'extern "C" void fake_device_note(const char*, ...);'
  pick '@libcudart.so.13$' | while read -r function; do
    echo "extern \"C\" __attribute__((weak)) int $function() {"
    echo "  fake_device_note(\"fake device: $function is not there\\n\");"
    echo '  return 801;  // cudaErrorNotSupported'
    echo '}'
  done
} >"$out/cudart.cpp"
