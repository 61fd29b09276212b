// run.float32_matmul_precision: what LibTorch is told, and what the user hears.
// Before doctest: LibTorch has a CHECK of its own.
#include "engine/train/step/model.h"

#include <ATen/Context.h>

#include <doctest/doctest.h>

#include <cstdlib>
#include <optional>

#include "engine/config/config.h"

namespace float32_products_test {

using namespace meshwright;

namespace {

Options table_with(const std::string& table, const std::string& key, const std::string& value) {
  for (const OptionSchema& schema : config::engine_schemas())
    if (schema.table == table) {
      Options options(schema);
      options.set(key, value);
      return options;
    }
  return {};
}

std::string set_for(const char* precision, const char* device, c10::DeviceType computes_on) {
  return train::set_float32_products(table_with("run", "float32_matmul_precision", precision),
                                     table_with("dist_env", "device", device),
                                     c10::Device(computes_on));
}

at::Float32Precision of_cpus() {
  return at::globalContext().float32Precision(at::Float32Backend::MKLDNN, at::Float32Op::MATMUL);
}

}  // namespace

TEST_CASE("products of float32 are TF32's on devices where the file says so, and never on CPUs") {
  const at::Context& context = at::globalContext();
  const at::Float32Precision cpus = of_cpus();
  CHECK(set_for("high", "auto", c10::kCPU) ==
        "run.float32_matmul_precision = \"high\" has no effect: the ranks compute on the CPU");
  CHECK(set_for("high", "cpu", c10::kCPU).empty());  // the configuration has told it
  CHECK(set_for("highest", "auto", c10::kCPU).empty());
  CHECK_FALSE(context.allowTF32CuBLAS());
  CHECK(set_for("high", "auto", c10::kCUDA).empty());
  CHECK(context.allowTF32CuBLAS());
  CHECK((context.float32MatmulPrecision() == at::Float32MatmulPrecision::HIGH));
  CHECK((of_cpus() == cpus));
  CHECK(set_for("highest", "cuda", c10::kCUDA).empty());
  CHECK_FALSE(context.allowTF32CuBLAS());
  CHECK((of_cpus() == cpus));
}

TEST_CASE("the file comes before the variable that asks LibTorch for TF32, and that is told") {
  constexpr const char* kVariable = "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE";
  const char* found = std::getenv(kVariable);
  const std::optional<std::string> before =
      found == nullptr ? std::nullopt : std::optional<std::string>(found);
  ::setenv(kVariable, "1", 1);
  CHECK(set_for("high", "auto", c10::kCUDA).empty());
  CHECK(set_for("highest", "auto", c10::kCUDA) ==
        "run.float32_matmul_precision = \"highest\" comes before TORCH_ALLOW_TF32_CUBLAS_OVERRIDE, "
        "which asks for TF32");
  CHECK_FALSE(at::globalContext().allowTF32CuBLAS());
  if (before)
    ::setenv(kVariable, before->c_str(), 1);
  else
    ::unsetenv(kVariable);
}

}  // namespace float32_products_test
