// The module is what the outline says, through the descriptor as the engine finds it.
#include <meshwright/components.h>
#include <meshwright/model/model_family.h>
#include <meshwright/model/running_model.h>
#include <meshwright/parallel/parallel.h>
#include <meshwright/parallel/plugin_runtime.h>
#include <torch/nn/module.h>

#include <memory>

#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>  // after LibTorch, which has a CHECK of its own

namespace mw = meshwright;

extern "C" const meshwright_plugin meshwright_plugin_v1;
extern "C" const mw::PluginRuntime meshwright_runtime_v1;  // net.cpp is compiled into the test

namespace {

const meshwright_component& component() {
  const meshwright_extension* block = meshwright_plugin_v1.extensions;
  while (block != nullptr && block->id != MESHWRIGHT_MODELS) block = block->next;
  REQUIRE(block != nullptr);
  return reinterpret_cast<const meshwright_components*>(block)->components[0];
}

struct Family {
  Family() {
    meshwright_status status{};
    status.struct_size = sizeof status;
    made = static_cast<mw::ModelFamily*>(component().create(&status));
    REQUIRE(made != nullptr);
    mw::OptionSchema schema;
    schema.table = "model.my_model";
    for (size_t i = 0; i < component().option_count; ++i)
      schema.options.push_back(&component().options[i]);
    request.options = mw::Options(schema);
  }
  ~Family() { component().destroy(made); }
  mw::ModelFamily* made = nullptr;
  mw::ModelRequest request;
};

}  // namespace

TEST_CASE("the module has the outline's parameters in its order") {
  Family family;
  const mw::ModelOutline outline = family.made->outline(family.request);
  const std::unique_ptr<mw::RunningModel> running =
      meshwright_runtime_v1.make(*family.made, family.request);
  const mw::ModelOutline live = mw::outline_of(*running->module());
  REQUIRE(live.parameters.size() == outline.parameters.size());
  for (size_t i = 0; i < live.parameters.size(); ++i) {
    CHECK(live.parameters[i].name == outline.parameters[i].name);
    CHECK(live.parameters[i].shape == outline.parameters[i].shape);
  }
}

TEST_CASE("options that do not fit together are told") {
  Family family;
  mw::Diagnostics good, bad;
  family.made->validate(family.request, good);
  CHECK(good.ok());
  family.request.options.set("heads", int64_t{5});
  family.made->validate(family.request, bad);
  CHECK(!bad.ok());
}
