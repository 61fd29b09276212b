// What an application needs to train a module of its own comes with one include, also when it
// stands twice.
#include "meshwright/trainer.h"

struct OneIncludeImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x) { return x; }
};
MESHWRIGHT_MODULE(OneInclude);

at::Tensor call_through_the_holder(OneInclude& module, const at::Tensor& x) { return module(x); }
std::shared_ptr<torch::nn::Module> as_the_trainer_takes_it(const OneInclude& module) {
  return module.ptr();
}
