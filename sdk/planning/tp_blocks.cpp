#include "tp_blocks.h"

#include "tp_errors.h"

namespace meshwright::tp {

CutBlocks::CutBlocks(const TpPlan& plan, const footprint::ModuleIndex& index) : index_(index) {
  for (const TpEntry& entry : plan.entries) {
    if (entry.style.kind != TpStyleKind::column || entry.style.output != TpLayout::shard_last)
      continue;
    for (const std::string& name : entry.modules) {
      const ModuleOutline* module = index.find(name);
      if (module != nullptr && module->kind == ModuleKind::linear && !index.layer_of(name).empty())
        blocks_.insert(module_of(module->name));
    }
  }
}

std::string_view CutBlocks::around(std::string_view module) const {
  if (blocks_.empty()) return {};
  const std::string_view layer = index_.layer_of(module);
  if (layer.empty()) return {};
  for (std::string_view at = module;; at = module_of(at)) {
    const bool beside = at == module || at == module_of(module);
    if (blocks_.contains(at) && (at != layer || beside)) return *blocks_.find(at);
    if (at == layer || at.empty()) return {};
  }
}

Sees seen_by(const ModelOutline& outline, std::string_view module) {
  Sees out = Sees::unsaid;
  for (const auto& [pattern, word] : outline.own_tp_plan) {
    const Sees said = word == kOfHeads ? Sees::heads : word == kOfStream ? Sees::stream : out;
    if (said != out && pattern_matches(pattern, module)) out = said;
  }
  if (out != Sees::unsaid) return out;
  for (const auto& [pattern, word] :
       outline.own_sequence_plan)  // norms of the stream, by what it is
    if (pattern_matches(pattern, module)) return Sees::stream;
  return out;
}

}  // namespace meshwright::tp
