#include "sdk/kit/conformance/training/model.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/scalar_tensor.h>
#include <c10/core/GradMode.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <stdexcept>

#include "meshwright/nn/layers.h"
#include "sdk/base/plugin_guard.h"
#include "sdk/kit/conformance/probe.h"
#include "sdk/kit/conformance/training_library.h"

namespace meshwright::conformance {

using at::Tensor;

std::string failure_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    return one_line(error);
  } catch (const std::exception& error) {
    // The first line: LibTorch's exceptions go on with a backtrace.
    const std::string text = error.what();
    return "it throws: " + text.substr(0, text.find('\n'));
  } catch (...) {
    return "it throws what is no std::exception";
  }
  return "";
}

int64_t ModelBatch::count() const { return targets.ne(-100).sum().item<int64_t>(); }

ModelUnderTest::ModelUnderTest(const ModelFamily& family, const ModelRequest& request,
                               const detail::PluginCode* code)
    : family_(family), request_(request), code_(code), outline_(family.outline(request)) {
  first_ = detail::call_plugin(code_, "make", [&] { return family.make(request); });
  if (first_ == nullptr) throw std::runtime_error("make() returned nothing");
  if (first_->module() == nullptr) throw std::runtime_error("module() returned nothing");
  first_ = detail::guarded_running(code_, std::move(first_), outline_.vocab_size);
  length_ = std::min<int64_t>(16, first_->max_positions());
  if (outline_.max_positions > 0) length_ = std::min(length_, outline_.max_positions);
  if (length_ > 1) length_ -= length_ % 2;
}

std::unique_ptr<RunningModel> ModelUnderTest::make() const {
  std::unique_ptr<RunningModel> out =
      detail::call_plugin(code_, "make", [&] { return family_.make(request_); });
  if (out == nullptr || out->module() == nullptr)
    throw std::runtime_error("make() gave a model the first time, and none the second");
  out = detail::guarded_running(code_, std::move(out), outline_.vocab_size);
  fill_values(*out->module(), family_, request_, outline_);
  return out;
}

ModelBatch ModelUnderTest::batch(const RunningModel& model, int64_t step, int64_t begin,
                                 int64_t end) const {
  std::vector<Tensor> rows;
  for (int64_t row = begin; row < end; ++row)
    rows.push_back(at::randint(
        0, outline_.vocab_size, {1, length_ + 1},
        at::detail::createCPUGenerator(static_cast<uint64_t>(step * kModelRows + row + 1)),
        at::kLong));
  const Tensor ids = at::cat(rows);
  ModelBatch out{ids.narrow(1, 0, length_).clone(), ids.narrow(1, 1, length_).clone()};
  if (!model.changes_batches()) return out;
  HostBatch host;
  host.tokens = out.tokens, host.targets = out.targets;
  host.seed = 7, host.step = step, host.sample = step * kModelRows + begin;
  model.change_batch(host);
  return {host.tokens, host.targets};
}

std::vector<std::pair<std::string, Tensor>> parameters_of(const torch::nn::Module& module) {
  std::vector<std::pair<std::string, Tensor>> out;
  std::set<const void*> seen;
  for (const auto& item : module.named_parameters())
    if (seen.insert(item.value().unsafeGetTensorImpl()).second)
      out.emplace_back(item.key(), item.value());
  return out;
}

void fill_values(torch::nn::Module& module, const ModelFamily& family, const ModelRequest& request,
                 const ModelOutline& outline) {
  c10::NoGradGuard no_grad;
  uint64_t seed = 1;
  for (const auto& [name, parameter] : parameters_of(module)) {
    reallocate(parameter, parameter.sizes(), at::TensorOptions().dtype(at::kFloat));
    const Tensor noise =
        at::randn(parameter.sizes(), at::detail::createCPUGenerator(seed++), at::kFloat);
    const ParameterOutline* known = outline.find_parameter(name);
    const InitialValue value =
        known != nullptr ? family.initial_value(request, outline, *known) : InitialValue{};
    Tensor out = parameter.detach();
    switch (value.kind) {
      case InitialValue::Kind::constant:
        out.copy_(noise * 0.1 + value.value);
        break;
      case InitialValue::Kind::normal:
        out.copy_(noise * value.value);
        break;
      case InitialValue::Kind::uniform:
        out.copy_(noise.clamp(-1, 1) * value.value);
        break;
    }
    if (value.zero_row) out[*value.zero_row].zero_();
  }
}

Curve plain_curve(const ModelUnderTest& model) {
  Curve out;
  const std::unique_ptr<RunningModel> running = model.make();
  const auto parameters = parameters_of(*running->module());
  for (int64_t step = 0; step < kModelSteps; ++step) {
    const ModelBatch batch = model.batch(*running, step, 0, kModelRows);
    Tensor loss = running->loss_sum(running->forward(batch.tokens), batch.targets, {}, nullptr) /
                  static_cast<double>(batch.count());
    loss.backward();
    out.losses.push_back(loss.item<double>());
    c10::NoGradGuard no_grad;
    double squares = 0;
    for (const auto& [name, p] : parameters)
      if (p.grad().defined()) squares += p.grad().to(at::kDouble).square().sum().item<double>();
    out.norms.push_back(std::sqrt(squares));
    const double scale = std::min(1.0, kModelNorm / (out.norms.back() + 1e-6));
    for (const auto& [name, p] : parameters)
      if (p.grad().defined()) {
        p.detach().sub_(p.grad() * scale, kModelRate);
        p.mutable_grad() = Tensor();
      }
  }
  for (const auto& [name, p] : parameters) out.parameters[name] = p.detach().clone();
  return out;
}

}  // namespace meshwright::conformance

// One case of a model, by its name. Says what it found through the two functions.
extern "C" MESHWRIGHT_API void meshwright_check_model(
    const char* which, const meshwright::ModelFamily* family,
    const meshwright::ModelRequest* request, const meshwright::detail::PluginCode* code,
    void* context, meshwright::conformance::Say fail, meshwright::conformance::Say note) {
  using namespace meshwright::conformance;
  at::set_num_threads(1);
  std::vector<std::string> problems;
  std::string said;
  const std::string failure = failure_of([&] {
    ModelUnderTest model(*family, *request, code);
    const std::string name = which;
    said = name == "module"    ? check_module(model, problems)
           : name == "forward" ? check_forward(model, problems)
                               : check_layouts(model, problems);
  });
  // What was found before is mostly why.
  if (!failure.empty() && problems.empty()) problems.push_back(failure);
  for (const std::string& problem : problems) fail(context, problem.c_str());
  if (problems.empty()) note(context, said.c_str());
}
