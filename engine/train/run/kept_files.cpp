#include "engine/train/run/kept_files.h"

#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>
#include <map>
#include <span>

#include "engine/checkpoint/adapters.h"
#include "engine/checkpoint/checksum.h"
#include "engine/checkpoint/source.h"
#include "engine/checkpoint/weights/auxiliary_files.h"
#include "engine/checkpoint/weights/export.h"
#include "engine/checkpoint/weights/safetensors.h"
#include "engine/job/trainable.h"
#include "engine/launch/rendezvous/notices.h"
#include "engine/train/run/host_reads.h"
#include "engine/train/step/rank_agreement.h"
#include "sdk/base/files/durable.h"
#include "sdk/base/files/foreign_file.h"
#include "sdk/base/words.h"

namespace meshwright::train {

namespace fs = std::filesystem;

void KeptFiles::add(std::string name, std::string bytes) {
  remove([&](std::string_view other) { return other == name; });
  checkpoint::BlockChecksums sums;
  sums.add(std::as_bytes(std::span(bytes)));
  const auto size = static_cast<int64_t>(bytes.size());
  files_.push_back({{std::move(name), size, sums.finish()}, std::move(bytes)});
}

void KeptFiles::read(std::string name, const fs::path& file) {
  base::ForeignFile opened(file);
  std::string bytes = opened.read(base::kLargeFile);
  if (!opened.problem().empty())
    throw Error(ErrorCode::file_unreadable,
                "cannot read " + file.string() + ", which checkpoints carry along: " +
                    (opened.reason() != 0 ? std::strerror(opened.reason()) : opened.problem()))
        .help("make it readable, or move it out of the folder");
  add(std::move(name), std::move(bytes));
}

void KeptFiles::remove(const std::function<bool(std::string_view name)>& which) {
  std::erase_if(files_, [&](const KeptFile& file) { return which(file.record.name); });
}

checkpoint::FileRecord write_kept(const KeptFile& file, const fs::path& folder) {
  const fs::path to = folder / file.record.name;
  base::make_folders(to.parent_path());
  base::NewFile out(to);
  out.append(file.bytes);
  out.finish();
  return file.record;
}

ModelFiles read_model_files(checkpoint::Checkpoint* from, const fs::path& config,
                            const std::string& config_text, const std::string& pretrained,
                            bool bytes) {
  ModelFiles out;
  auto carry = [&](const weights::Carried& carried) {
    for (const weights::CarriedFile& file : carried.files)
      out.files.read("source/" + file.name, file.path);
    out.notices.insert(out.notices.end(), carried.notices.begin(), carried.notices.end());
  };
  if (!config_text.empty()) out.files.add("config.json", config_text);
  if (from != nullptr) {
    const checkpoint::CarriedFiles carried = checkpoint::carried_by(*from);
    for (const checkpoint::FileRecord* file : carried.files)
      out.files.add(file->name, from->read_file(file->name));
    if (!carried.notice.empty()) out.notices.push_back(carried.notice);
    for (const checkpoint::TensorRecord& tensor : from->meta().tensors)
      if (tensor.state.empty()) out.export_dtypes.emplace_back(tensor.name, tensor.export_dtype);
  } else if (!pretrained.empty()) {
    carry(weights::carried_files(pretrained));
    const weights::WeightFolder source(pretrained);
    for (const std::string& name : source.names())
      out.export_dtypes.emplace_back(name, source.find(name)->dtype);
  }
  // Also for a checkpoint of a program that did not look beside the config yet.
  if (!pretrained.empty() || config.empty() || out.files.all().size() > 1) return out;
  if (!bytes)
    carry(weights::carried_beside(config.parent_path()));
  else if (std::optional<std::string> notice = weights::tokenizer_of_no_use(config))
    out.notices.push_back(*notice);
  return out;
}

namespace {

uint64_t checksum_of_all(const std::vector<uint64_t>& checksums) {
  return checkpoint::checksum(std::as_bytes(std::span(checksums)));
}

// The ranks that are unlike the majority, at a tie unlike the first rank.
std::vector<int64_t> odd_ones(const std::vector<int64_t>& ranks,
                              const std::vector<uint64_t>& digests) {
  std::map<uint64_t, size_t> count;
  for (uint64_t digest : digests) ++count[digest];
  uint64_t usual = digests[0];
  for (const auto& [digest, n] : count)
    if (n > count[usual]) usual = digest;
  std::vector<int64_t> out;
  for (size_t i = 0; i < ranks.size(); ++i)
    if (digests[i] != usual) out.push_back(ranks[i]);
  return out;
}

// How far two ranks' values of a tensor lie apart.
struct Distance {
  double most = 0, largest = 0;  // difference, and value on any of the two
  int64_t elements = 0, of = 0;  // that differ
  // A few digits of the last place, as sums in another order come to.
  bool is_rounding() const { return most <= 1e-4 * largest; }
  std::string text() const {
    if (elements == 0) return " (in their bits alone: the numbers are equal)";
    return " (by up to " + text::short_number(most, 2) + ", where the largest is " +
           text::short_number(largest, 2) + ", in " + std::to_string(elements) + " of " +
           std::to_string(of) + " elements)";
  }
};

// Collective. `mine`: this rank's values, which only the two need to have. Piece by piece: memory
// may be scarce.
Distance distance_between(World& world, const at::Tensor& mine, int64_t one, int64_t other) {
  constexpr int64_t kPiece = 1 << 20;
  const bool first = world.rank() == one, second = world.rank() == other;
  Distance out;
  out.of = static_cast<int64_t>(
      largest_of_ranks(world, {first ? static_cast<double>(mine.numel()) : 0})[0]);
  for (int64_t at = 0; at < out.of; at += kPiece) {
    const int64_t count = std::min(kPiece, out.of - at);
    at::Tensor sum = at::zeros({count}, at::TensorOptions().dtype(at::kDouble));
    if (first || second) sum.copy_(mine.reshape({-1}).narrow(0, at, count));
    if (first || second) out.largest = std::max(out.largest, sum.abs().max().item<double>());
    if (second) sum.neg_();
    sum = sum.to(world.device());
    world.everyone()->all_reduce(sum, ReduceOp::sum, /*control=*/true).wait();
    sum = sum.cpu();
    world.check();
    if (const double far = sum.abs().max().item<double>(); far > out.most || std::isnan(far))
      out.most = far;
    out.elements += sum.ne(0).sum().item<int64_t>();
  }
  out.largest = largest_of_ranks(world, {out.largest})[0];
  return out;
}

}  // namespace

ReplicaDigests replica_digests(const std::vector<Replicas>& replicas,
                               const std::vector<LocalTensor>& tensors, int64_t rank) {
  std::vector<at::Tensor> held;
  for (const Replicas& group : replicas)
    if (std::ranges::binary_search(group.ranks, rank))
      for (size_t i : group.tensors) held.push_back(tensors[i].local.contiguous());
  HostReads values(std::move(held));
  ReplicaDigests out(replicas.size());
  for (size_t g = 0; g < replicas.size(); ++g) {
    if (!std::ranges::binary_search(replicas[g].ranks, rank)) continue;
    for (size_t i = 0; i < replicas[g].tensors.size(); ++i) {
      // A tensor may come in pieces, whose ends depend on what else this rank holds.
      checkpoint::BlockChecksums sums;
      values.next([&](std::span<const std::byte> piece) { sums.add(piece); });
      out[g].push_back(checksum_of_all(sums.finish()));
    }
  }
  return out;
}

std::vector<uint64_t> summary_of(const ReplicaDigests& digests) {
  std::vector<uint64_t> out;
  for (const std::vector<uint64_t>& group : digests)
    if (!group.empty()) out.push_back(checksum_of_all(group));
  return out;
}

std::optional<Error> find_differing(World& world, const std::vector<Replicas>& replicas,
                                    const std::vector<LocalTensor>& tensors,
                                    const ReplicaDigests& mine,
                                    const std::vector<std::vector<uint64_t>>& summaries,
                                    const std::string& strategy) {
  // How many groups each rank has been in so far, which is where its next summary stands.
  std::vector<size_t> before(summaries.size(), 0);
  std::vector<size_t> suspects;
  for (size_t g = 0; g < replicas.size(); ++g) {
    std::vector<uint64_t> digests;
    for (int64_t rank : replicas[g].ranks) {
      auto r = static_cast<size_t>(rank);
      digests.push_back(summaries[r][before[r]++]);
    }
    if (!odd_ones(replicas[g].ranks, digests).empty()) suspects.push_back(g);
  }
  if (suspects.empty()) return std::nullopt;
  std::vector<uint64_t> details;
  for (size_t g : suspects) details.insert(details.end(), mine[g].begin(), mine[g].end());
  const std::vector<std::vector<uint64_t>> all = gather(world, details);
  std::fill(before.begin(), before.end(), 0);
  std::string first;
  Distance apart;
  int64_t more = 0;
  for (size_t g : suspects) {
    const Replicas& group = replicas[g];
    std::vector<std::vector<uint64_t>> digests;  // by rank, then by tensor
    for (int64_t rank : group.ranks) {
      auto r = static_cast<size_t>(rank);
      const auto begin = all[r].begin() + static_cast<ptrdiff_t>(before[r]);
      digests.emplace_back(begin, begin + std::ssize(group.tensors));
      before[r] += group.tensors.size();
    }
    for (size_t t = 0; t < group.tensors.size(); ++t) {
      std::vector<uint64_t> of_tensor;
      for (const std::vector<uint64_t>& rank : digests) of_tensor.push_back(rank[t]);
      std::vector<int64_t> odd = odd_ones(group.ranks, of_tensor), usual;
      if (odd.empty() || !first.empty()) {
        more += odd.empty() ? 0 : 1;
        continue;
      }
      std::ranges::set_difference(group.ranks, odd, std::back_inserter(usual));
      const LocalTensor& tensor = tensors[group.tensors[t]];
      first = rendezvous::named_ranks(odd) + (odd.size() == 1 ? " holds" : " hold") +
              " other values of " + (tensor.state.empty() ? "" : tensor.state + " of ") +
              tensor.name + " than " + rendezvous::named_ranks(usual);
      apart = distance_between(world, tensor.local, usual[0], odd[0]);
      first += apart.text();
    }
  }
  if (more > 0)
    first += ", and " + std::to_string(more) +
             (more == 1 ? " more tensor differs" : " more tensors differ");
  Error error(ErrorCode::replicas_differ,
              first + ": they are copies of each other in the layout of " + strategy +
                  ", and a checkpoint would keep one of them; nothing was saved");
  if (apart.is_rounding())
    error.note("so little is rounding: these ranks have computed the same in different ways")
        .help(
            "run ranks that hold copies on processors of one kind, with the same number of "
            "threads, or with ATEN_CPU_CAPABILITY=avx2 in the environment of all of them");
  else
    error.note(
        "this is more than rounding: something was written, or not summed, on some of these ranks "
        "alone");
  return error
      .help(
          "if the strategy or the model is your own: reduce gradients over all ranks that hold a "
          "parameter, and broadcast what only one of them computes")
      .help(
          "train under another strategy (`meshwright plugins list`), from the newest checkpoint "
          "that was saved");
}

// The adapters lie beside hf/ where both forms are wanted.
Exports::Exports(const Job& job, const fs::path& run)
    : adapter_folder_(run / plan::kAdapterExportFolder) {
  using enum checkpoint::ExportForm;
  const Options& lora = job.table("lora");
  const std::string wanted = lora.get_int("r") > 0 ? lora.get_string("export") : "merged";
  if (job.table("checkpoint").get_string("export") == "none" || wanted == "none") return;
  wanted_ = {{run / plan::kExportFolder, wanted == "adapter" ? adapter : merged}};
  if (wanted == "both") wanted_.emplace_back(adapter_folder_, adapter);
}

void Exports::write(const fs::path& checkpoint) {
  if (wanted_.empty()) return;
  // Before the other one, so that no failure leaves adapters beside a model of another step, nor
  // another lora.export those of before.
  try {
    weights::remove_folder(adapter_folder_);
  } catch (const Error&) {
    if (wanted_.size() > 1) throw;  // else what somebody else has put there may stay
  }
  checkpoint::Source source(checkpoint);
  std::vector<std::string> told;
  std::string lacks;
  for (const auto& [folder, form] : wanted_) {
    checkpoint::export_folder(source, folder, {.form = form});
    told.push_back("exported for Hugging Face: " + folder.string());
    if (form == checkpoint::ExportForm::adapter) lacks = checkpoint::trained_whole_text(source);
  }
  if (!lacks.empty())
    told.push_back("notice: " + lacks + "; lora.export = \"merged\" writes the whole model");
  told_ = std::move(told);
}

}  // namespace meshwright::train
