#include "engine/train/replicas.h"

#include <algorithm>
#include <map>
#include <span>
#include <utility>

#include "engine/checkpoint/checksum.h"
#include "engine/rendezvous/notices.h"
#include "engine/train/host_reads.h"
#include "engine/trainer/rank_agreement.h"

namespace meshwright::train {

namespace {

constexpr size_t kDigits = 16;

bool contains(const std::vector<int64_t>& ranks, int64_t rank) {
  return std::binary_search(ranks.begin(), ranks.end(), rank);
}

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

// The digests of one group's tensors as its ranks sent them.
std::vector<uint64_t> read_digests(const std::string& text, size_t first, size_t count) {
  std::vector<uint64_t> out(count);
  for (size_t i = 0; i < count; ++i)
    checkpoint::parse_hex(std::string_view(text).substr((first + i) * kDigits, kDigits), out[i]);
  return out;
}

}  // namespace

ReplicaDigests replica_digests(const std::vector<Replicas>& replicas,
                               const std::vector<LocalTensor>& tensors, int64_t rank) {
  std::vector<at::Tensor> held;
  for (const Replicas& group : replicas)
    if (contains(group.ranks, rank))
      for (size_t i : group.tensors) held.push_back(tensors[i].local.contiguous());
  HostReads values(std::move(held));
  ReplicaDigests out(replicas.size());
  for (size_t g = 0; g < replicas.size(); ++g) {
    if (!contains(replicas[g].ranks, rank)) continue;
    for (size_t i = 0; i < replicas[g].tensors.size(); ++i) {
      // A tensor may come in pieces, whose ends depend on what else this rank holds.
      checkpoint::BlockChecksums sums;
      values.next([&](std::span<const std::byte> piece) { sums.add(piece); });
      out[g].push_back(checksum_of_all(sums.finish()));
    }
  }
  return out;
}

std::string summary_of(const ReplicaDigests& digests) {
  std::string out;
  for (const std::vector<uint64_t>& group : digests)
    if (!group.empty()) out += checkpoint::to_hex(checksum_of_all(group));
  return out;
}

std::optional<Error> find_differing(World& world, const std::vector<Replicas>& replicas,
                                    const std::vector<LocalTensor>& tensors,
                                    const ReplicaDigests& mine,
                                    const std::vector<std::string>& summaries,
                                    const std::string& strategy) {
  // How many groups each rank has been in so far, which is where its next summary stands.
  std::vector<size_t> before(summaries.size(), 0);
  std::vector<size_t> suspects;
  for (size_t g = 0; g < replicas.size(); ++g) {
    std::vector<uint64_t> digests;
    for (int64_t rank : replicas[g].ranks) {
      auto r = static_cast<size_t>(rank);
      digests.push_back(read_digests(summaries[r], before[r]++, 1)[0]);
    }
    if (!odd_ones(replicas[g].ranks, digests).empty()) suspects.push_back(g);
  }
  if (suspects.empty()) return std::nullopt;
  std::string details;
  for (size_t g : suspects)
    for (uint64_t digest : mine[g]) details += checkpoint::to_hex(digest);
  std::vector<std::string> all = gather_texts(world, details);
  std::fill(before.begin(), before.end(), 0);
  std::string first;
  int64_t more = 0;
  for (size_t g : suspects) {
    const Replicas& group = replicas[g];
    std::vector<std::vector<uint64_t>> digests;  // by rank, then by tensor
    for (int64_t rank : group.ranks) {
      auto r = static_cast<size_t>(rank);
      digests.push_back(read_digests(all[r], before[r], group.tensors.size()));
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
      std::set_difference(group.ranks.begin(), group.ranks.end(), odd.begin(), odd.end(),
                          std::back_inserter(usual));
      const LocalTensor& tensor = tensors[group.tensors[t]];
      first = rendezvous::named_ranks(odd) + (odd.size() == 1 ? " holds" : " hold") +
              " other values of " + (tensor.state.empty() ? "" : tensor.state + " of ") +
              tensor.name + " than " + rendezvous::named_ranks(usual);
    }
  }
  std::string rest = more == 0 ? ""
                               : ", and " + std::to_string(more) +
                                     (more == 1 ? " more tensor differs" : " more tensors differ");
  return Error(ErrorCode::replicas_differ, first + rest + ": the strategy " + strategy +
                                               " says that these ranks hold the same, and a "
                                               "checkpoint would keep one of them; nothing was "
                                               "saved")
      .key("distributed.strategy")
      .help(
          "train under another strategy (`meshwright plugins list`), from the newest checkpoint "
          "that was saved")
      .help(
          "if the strategy is yours: reduce gradients over all ranks that hold a parameter, and "
          "broadcast what only one of them computes");
}

}  // namespace meshwright::train
