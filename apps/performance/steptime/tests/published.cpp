#include "published.h"

#include <algorithm>
#include <fstream>
#include <stdexcept>

#include "sdk/base/words.h"

namespace meshwright::steptime::published {
namespace {

using Cells = std::map<std::string, std::string>;
std::vector<Cells> table(const std::string& path) {
  std::ifstream in(path);
  if (!in) throw std::runtime_error("no " + path);
  std::string line;
  std::getline(in, line);
  const std::vector<std::string> names = text::split(line, ',');
  std::vector<Cells> out;
  while (std::getline(in, line)) {
    const std::vector<std::string> cells = text::split(line, ',');
    Cells row;
    for (size_t i = 0; i < names.size() && i < cells.size(); ++i) row[names[i]] = cells[i];
    out.push_back(std::move(row));
  }
  return out;
}

double number(const Cells& row, const std::string& name) { return std::stod(row.at(name)); }

enum class Sharding : uint8_t { none, level1, level2, full, once_a_pass };

struct Precisions {
  double gathered = 2, reduced = 4, stored = 4;
};

// What the strategy moves and keeps, from the model's sizes.
void shard(const Shape& shape, Sharding sharding, bool copies, bool deferred, bool hidden,
           const Precisions& bytes, Job& job, bool kept_in_pipeline = true) {
  const double layer = (shape.layer_parameters() - (job.ep > 1 ? shape.expert_parameters() : 0)) /
                       job.tp,
               root = shape.root_parameters() / job.tp;
  DataTraffic& data = job.data;
  data.hidden = hidden;
  const bool replicated = job.replicas() > 1 || job.shard > 1;
  if (!replicated) return;
  data.layer_reduced = layer * bytes.reduced;
  data.root_reduced = root * bytes.reduced;
  data.layer_summed = data.layer_reduced / job.shard;
  data.root_summed = data.root_reduced / job.shard;
  data.layer_gathered = layer * bytes.gathered;
  data.root_gathered = root * bytes.gathered;
  const bool deep = job.pp > 1 && kept_in_pipeline;
  switch (sharding) {
    case Sharding::none:
      data.reduce = When::once;
      return;
    case Sharding::level1:
    case Sharding::level2:
      data.gather_forward = data.reduce = When::once;
      return;
    case Sharding::full:
    case Sharding::once_a_pass:
      data.gather_forward = deep ? When::once : When::each;
      if (!deep && sharding != Sharding::once_a_pass)
        data.layer_gathered_again = data.layer_gathered;
      data.reduce = deferred || deep ? When::once : When::each;
      if (copies) {
        data.copied_out = 4 * layer;
        data.copied_in = 6 * layer;
      }
      return;
  }
}

bool has(const std::string& options, const std::string& word) {
  return std::ranges::count(text::split(options, ' '), word) > 0;
}

double optimizer_bytes(Fusion fusion) {
  switch (fusion) {
    case Fusion::eager:
      return 90;
    case Fusion::compiled:
      return 60;
    case Fusion::fused:
      return 44;
  }
  return 0;
}

// Launch times of a layer, of what is compiled or fused and of what is not.
void host_of(Job& job, bool torch_tp) {
  const bool eager = job.fusion == Fusion::eager;
  job.host_forward = (eager ? 0.7e-3 : 0.35e-3) + (torch_tp ? 0.3e-3 : 0);
  job.host_backward = eager ? 1.0e-3 : 0.45e-3;
}

Row run_of(const Cells& cells, const std::map<std::string, Shape>& shapes) {
  Row row;
  row.id = cells.at("id");
  row.set = cells.at("set");
  row.model = cells.at("model");
  row.gpu = cells.at("gpu");
  row.nic = number(cells, "nic") * 1e9;
  row.shape = shapes.at(row.model);
  const std::string &zero = cells.at("zero"), &ac = cells.at("ac"), &fus = cells.at("fus");
  const std::string& options = cells.at("opts");
  Job& job = row.job;
  job.ranks = number(cells, "n");
  job.ranks_per_host = number(cells, "host");
  job.shard = number(cells, "shard");
  job.tp = number(cells, "t");
  job.cp = number(cells, "c");
  job.pp = number(cells, "p");
  job.stages = number(cells, "v");
  job.ep = number(cells, "e");
  job.micro_batch = number(cells, "mbs");
  job.micro_batches = number(cells, "m");
  job.length = number(cells, "seq");
  if (job.stages > 1) job.schedule = PipelineSchedule::interleaved_1f1b;
  job.fusion = fus == "te" ? Fusion::fused : fus == "compile" ? Fusion::compiled : Fusion::eager;
  if (ac == "full" || ac == "l2" || ac == "l3") {
    job.recompute = Recompute::full;
    job.recomputed_layers = ac == "l2" ? 1.0 / 2 : ac == "l3" ? 1.0 / 3 : 1;
  } else if (ac == "op") {
    job.recompute = Recompute::products;
  } else if (ac == "attn") {
    job.recompute = Recompute::attention;
  }
  const std::string& kernel = cells.at("att");
  if (kernel == "unf") job.attention = Attention::unfused;
  if (kernel == "fa2") job.attention = Attention::fa2;
  job.fp8 = has(options, "fp8");
  job.lora = has(options, "lora");
  job.sequence_parallel = !has(options, "nosp");
  job.separate_columns = has(options, "sepcol");
  job.head_cut = !has(options, "nolp");
  job.regathers = job.fusion == Fusion::fused;
  job.copies_exchanges = job.fusion != Fusion::fused;
  if (has(options, "async")) job.async_tp = AsyncTp::torch;
  if (has(options, "tpov")) job.async_tp = AsyncTp::buffers;
  job.context = job.fusion == Fusion::fused ? ContextWay::ring : ContextWay::torch_ring;
  job.loss = job.fusion == Fusion::fused ? Loss::fused : Loss::plain;
  if (has(options, "closs")) job.loss = Loss::compiled;
  if (has(options, "uce")) job.loss = Loss::unfused_parallel;
  job.optimizer_bytes = optimizer_bytes(job.fusion);
  host_of(job, job.tp > 1 && job.fusion != Fusion::fused);
  row.mesh_board = has(options, "mesh");

  const bool whole_bf16 = has(options, "st16"), deferred = has(options, "defer");
  Precisions bytes{2, has(options, "red16") ? 2.0 : 4.0, whole_bf16 ? 2.0 : 4.0};
  Sharding sharding = Sharding::none;
  bool copies = false;
  if (zero == "fsdp2" || zero == "fsdp1") {
    sharding = has(options, "keep") ? Sharding::once_a_pass : Sharding::full;
    copies = zero == "fsdp2";
    job.state_cut = whole_bf16 ? 8 : 16;
    if ((deferred || job.pp > 1) && job.micro_batches > 1) job.whole_gradients = 4;
  } else if (zero == "z1" || zero == "z2") {
    sharding = zero == "z1" ? Sharding::level1 : Sharding::level2;
    job.state_whole = zero == "z1" ? 6 : 2;
    job.state_cut = zero == "z1" ? 12 : 16;
  } else {
    job.state_whole = job.lora ? 2 : whole_bf16 ? 8 : 18;
    job.state_cut = 0;
  }
  job.stored = bytes.stored;
  job.logits = job.loss == Loss::fused ? 6 : job.loss == Loss::compiled ? 4 : whole_bf16 ? 8 : 14;
  shard(row.shape, sharding, copies, deferred, !has(options, "noov"), bytes, job,
        /*kept_in_pipeline=*/!row.id.starts_with("KF"));

  const std::string& tps = cells.at("tps");
  const double tokens = job.tokens_a_step();
  if (tps.starts_with("TF"))
    row.seconds =
        tokens * row.shape.flop_a_token(job.length) / job.ranks / (std::stod(tps.substr(2)) * 1e12);
  else if (tps.starts_with("IT"))
    row.seconds = std::stod(tps.substr(2));
  else
    row.seconds = tokens / job.ranks / std::stod(tps);
  if (auto found = cells.find("mem"); found != cells.end() && !found->second.empty())
    row.memory = std::stod(found->second);
  return row;
}

Row mpt_of(const Cells& cells, const std::map<std::string, Shape>& shapes) {
  Row row;
  row.set = cells.at("set");
  row.model = "mpt-" + cells.at("model");
  row.gpu = cells.at("gpu");
  row.nic = row.gpu == "H100" ? 50e9 : 25e9;
  row.shape = shapes.at(row.model);
  Job& job = row.job;
  job.ranks = job.shard = number(cells, "n");
  job.length = number(cells, "seq");
  job.micro_batch = number(cells, "mbs");
  job.micro_batches = number(cells, "m");
  row.id = "MP " + row.model + " " + row.gpu + " " + cells.at("n") + " " + cells.at("seq") + " " +
           cells.at("mbs") + " " + cells.at("ac") + " " + cells.at("mp") + " " + cells.at("prec");
  if (cells.at("ac") == "full") job.recompute = Recompute::full;
  job.attention = Attention::triton;
  job.fp8 = cells.at("prec") == "fp8";
  const bool pure = cells.at("mp") == "pure";
  const Precisions bytes{2, pure ? 2.0 : 4.0, 4};
  job.state_cut = 16;  // main weights in float32, whatever is gathered
  job.stored = bytes.stored;
  job.logits = 8;
  job.optimizer_bytes = optimizer_bytes(Fusion::eager);
  job.host_forward = 1.0e-3;
  job.host_backward = 1.5e-3;
  shard(row.shape, cells.at("zero") == "zero2" ? Sharding::once_a_pass : Sharding::full,
        /*copies=*/false, /*deferred=*/false, /*hidden=*/true, bytes, job);
  row.seconds = job.tokens_a_step() / job.ranks / number(cells, "tps");
  return row;
}

// Rows of vTrain: Megatron-DeepSpeed on A100, replicas alone.
Row grid_of(const Cells& cells, const Shape& shape, double length) {
  Row row;
  row.gpu = "A100-80";
  row.nic = 12.5e9;
  row.shape = shape;
  Job& job = row.job;
  job.ranks = number(cells, "n");
  job.tp = number(cells, "t");
  job.pp = number(cells, "p");
  job.micro_batch = number(cells, "mbs");
  job.micro_batches = number(cells, "gbs") / number(cells, "d") / job.micro_batch;
  job.length = length;
  job.recompute = Recompute::full;
  job.attention = Attention::unfused;
  job.fusion = Fusion::fused;
  job.loss = Loss::unfused_parallel;
  job.sequence_parallel = false;
  job.optimizer_bytes = optimizer_bytes(Fusion::fused);
  host_of(job, false);
  job.state_whole = 18;
  job.state_cut = 0;
  shard(shape, Sharding::none, false, false, /*hidden=*/false, {2, 4, 2}, job);
  row.seconds = number(cells, "ms") / 1000;
  return row;
}

}  // namespace

std::map<std::string, Shape> models(const std::string& folder) {
  std::map<std::string, Shape> out;
  for (const Cells& row : table(folder + "/models.csv")) {
    Shape s;
    s.hidden = number(row, "h");
    s.layers = number(row, "L");
    s.heads = number(row, "H");
    s.kv_heads = number(row, "kv");
    s.head_dim = number(row, "d");
    s.ffn = number(row, "ffn");
    s.vocabulary = number(row, "V");
    s.gated = row.at("gated") == "1";
    s.tied = row.at("tied") == "1";
    s.experts = number(row, "E");
    s.experts_a_token = number(row, "topk");
    s.expert_ffn = number(row, "moe_ffn");
    s.shared_ffn = number(row, "shared");
    s.dense_layers = number(row, "dense");
    out[row.at("name")] = s;
  }
  return out;
}

std::vector<Row> runs(const std::string& folder) {
  const std::map<std::string, Shape> shapes = models(folder);
  std::vector<Row> out;
  for (const Cells& row : table(folder + "/runs.csv")) out.push_back(run_of(row, shapes));
  for (const Cells& row : table(folder + "/mpt.csv")) out.push_back(mpt_of(row, shapes));
  return out;
}

std::vector<Row> sweep(const std::string& folder) {
  const std::map<std::string, Shape> shapes = models(folder);
  std::vector<Row> out;
  for (const Cells& cells : table(folder + "/sweep.csv")) {
    Row row = grid_of(cells, shapes.at(cells.at("model")), 2048);
    row.model = cells.at("model");
    row.id = row.model + " mbs" + cells.at("mbs") + " t" + cells.at("t") + " d" + cells.at("d") +
             " p" + cells.at("p");
    out.push_back(std::move(row));
  }
  return out;
}

std::vector<Row> single(const std::string& folder) {
  std::vector<Row> out;
  for (const Cells& cells : table(folder + "/single.csv")) {
    Shape s;
    s.hidden = number(cells, "h");
    s.layers = number(cells, "L");
    s.heads = s.kv_heads = 16;
    s.head_dim = s.hidden / 16;
    s.ffn = 4 * s.hidden;
    s.vocabulary = 51200;
    s.gated = false;
    s.tied = true;
    Row row = grid_of(cells, s, 1024);
    row.model = "h" + cells.at("h") + " L" + cells.at("L");
    out.push_back(std::move(row));
  }
  return out;
}

std::vector<Row> layouts(const std::string& folder) {
  const std::map<std::string, Shape> shapes = models(folder);
  std::vector<Row> out;
  for (const Cells& cells : table(folder + "/layouts.csv")) {
    Row row;
    row.id = row.model = cells.at("model");
    row.gpu = "H100-25";
    row.nic = 50e9;
    row.shape = shapes.at(row.model);
    Job& job = row.job;
    job.ranks = number(cells, "n");
    job.tp = number(cells, "t");
    job.pp = number(cells, "p");
    job.cp = number(cells, "c");
    job.stages = number(cells, "v");
    job.micro_batch = number(cells, "mbs");
    job.length = number(cells, "seq");
    job.micro_batches = number(cells, "gbs") / (job.dp() * job.micro_batch);
    out.push_back(std::move(row));
  }
  return out;
}

std::vector<std::vector<std::string>> pairs(const std::string& folder) {
  std::vector<std::vector<std::string>> out;
  for (const Cells& row : table(folder + "/pairs.csv"))
    out.push_back({row.at("what"), row.at("faster"), row.at("slower")});
  return out;
}

Machines machines(const std::string& folder) {
  const std::pair<const char*, const char*> names[] = {
      {"A100-40", "a100-40"},    {"A100-80", "a100-80"}, {"H100", "h100-2024"}, {"H100-25", "h100"},
      {"H100-500", "h100-500w"}, {"H200", "h200"},       {"B200", "b200"}};
  Machines out;
  for (const auto& [row, file] : names) out[row] = find_machine(file, folder);
  return out;
}

Machine machine_of(const Row& row, const Machines& machines) {
  Machine machine = machines.at(row.gpu);
  machine.network.nic = row.nic;
  if (row.mesh_board) machine.network.pair = 1.0 / 3;
  return machine;
}

std::vector<Compared> compare(const std::vector<Row>& rows, const Machines& machines) {
  std::vector<Compared> out;
  for (const Row& row : rows) {
    const Machine machine = machine_of(row, machines);
    const Prediction p = predict(machine, row.shape, row.job);
    const double held = memory_of(row.shape, row.job).peak();
    out.push_back({row, machine, p, std::abs(p.seconds / row.seconds - 1), held,
                   held / (machine.memory - machine.outside), held / machine.memory});
  }
  return out;
}

double quantile(std::vector<double> values, double share) {
  std::ranges::sort(values);
  const auto at = static_cast<size_t>(share * static_cast<double>(values.size()));
  return values.at(std::min(at, values.size() - 1));
}

}  // namespace meshwright::steptime::published
