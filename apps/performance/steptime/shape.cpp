#include "apps/performance/steptime/job.h"

namespace meshwright::steptime {

double Shape::attention_parameters() const {
  return hidden * head_dim * (2 * heads + 2 * kv_heads);
}
double Shape::dense_parameters() const { return (gated ? 3 : 2) * hidden * ffn; }
double Shape::expert_parameters() const {
  return experts > 0 ? 3 * hidden * (experts * expert_ffn + shared_ffn) + experts * hidden : 0;
}
double Shape::layer_parameters() const {
  const double sparse = experts > 0 ? (layers - dense_layers) / layers : 0;
  return attention_parameters() + 2 * hidden + sparse * expert_parameters() +
         (1 - sparse) * dense_parameters();
}
double Shape::routed_parameters() const {
  return experts > 0 ? (layers - dense_layers) / layers * 3 * hidden * experts * expert_ffn : 0;
}
double Shape::layer_of_rank(double tp, double ep) const {
  const double routed = routed_parameters();
  return (layer_parameters() - routed) / tp + routed / (ep > 1 ? ep : tp);
}
double Shape::root_parameters() const { return hidden * vocabulary * (tied ? 1 : 2); }
double Shape::parameters() const { return layers * layer_parameters() + root_parameters(); }

double Shape::flop_a_token(double length) const {
  const double sparse = experts > 0 ? (layers - dense_layers) / layers : 0;
  const double active = sparse * 3 * hidden * (experts_a_token * expert_ffn + shared_ffn) +
                        (1 - sparse) * dense_parameters() + attention_parameters();
  const double all =
      6 * (layers * active + hidden * vocabulary) + 12 * layers * heads * head_dim * length;
  return all - frozen.layers * (4 * active + 8 * heads * head_dim * length) -
         2 * frozen.products * (layers - frozen.layers) * active -
         (frozen.head ? 2 : 0) * hidden * vocabulary -
         (frozen.head_input ? 2 : 0) * hidden * vocabulary;
}

}  // namespace meshwright::steptime
