#include "engine/train/step/processors.h"

#include <cstdint>
#include <map>

#include "engine/launch/rendezvous/notices.h"

namespace meshwright::train {

std::string unlike_vectors(const std::vector<std::string>& vectors) {
  std::map<std::string, std::vector<int64_t>> ranks;
  for (size_t rank = 0; rank < vectors.size(); ++rank)
    ranks[vectors[rank]].push_back(static_cast<int64_t>(rank));
  if (ranks.size() <= 1) return "";
  std::string list;
  for (const auto& [vector, of] : ranks)
    list += (list.empty() ? "" : ", ") + rendezvous::named_ranks(of) + " with " + vector;
  return "processors compute with unlike vectors (" + list +
         "): what ranks compute alike may differ in its last bit, and a save refuses copies that "
         "do (E0714); with ATEN_CPU_CAPABILITY=avx2, MKL_ENABLE_INSTRUCTIONS=AVX2 and "
         "DNNL_MAX_CPU_ISA=AVX2 in the environment of all ranks they compute alike";
}

}  // namespace meshwright::train
