// Where the parameters of one unit lie: in the buffer that is gathered, and in the shard of each
// rank that shares it. Pure: what plans show, what shards hold and what checkpoints name all read
// it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "meshwright/export.h"
#include "meshwright/region.h"
#include "meshwright/sharding_plan.h"
#include "meshwright/tp_plan.h"

namespace meshwright {

// One parameter of a unit, as this rank has it after tensor and expert parallelism.
struct UnitParameter {
  std::string name;
  std::vector<int64_t> sizes;  // at least one dimension
  bool trainable = true;
  // Of tensor parallelism: whether it was cut, whether unevenly, and its elements on the rank that
  // has the most.
  bool cut = false, uneven = false;
  int64_t largest = 0;  // 0: as here
};

// `whole`: its sizes before `tp` ranks cut it along `dim`.
MESHWRIGHT_API void mark_cut(UnitParameter& parameter, std::vector<int64_t> whole, size_t dim,
                             int64_t tp);

// `count` elements of the unit's parameter `parameter` from `from` on lie at `at` of a rank's
// shard.
struct ShardSlice {
  size_t parameter;
  int64_t from, at, count;
  bool operator==(const ShardSlice&) const = default;
};

class MESHWRIGHT_API UnitLayout {
 public:
  UnitLayout() = default;
  // Each parameter along one dimension, into chunks of ceil(size / ranks), the last ones short or
  // empty (torch.chunk): `dim` where it has more dimensions than that, else 0. Throws
  // Error(model_does_not_fit), which names `axis`, for a dim above 0 that the ranks do not divide.
  static UnitLayout rows(std::vector<UnitParameter> parameters, int64_t ranks, size_t dim,
                         const std::string& axis);
  // The trainable parameters as one buffer, cut evenly with the padding at its end, and the frozen
  // ones as another behind it; with `frozen_whole` those are on every rank and in no shard. Borders
  // must fall alike on all tensor-parallel ranks in what these hold alike: where a parameter is cut
  // unevenly, what is not cut comes first, and all ranks cut as the one that has the most.
  static UnitLayout flat(std::vector<UnitParameter> parameters, int64_t ranks,
                         bool frozen_whole = false);

  // In the order in which they lie, the trainable ones first; indices below are places in it.
  const std::vector<UnitParameter>& parameters() const { return parameters_; }
  // Its place among the parameters given.
  size_t given(size_t parameter) const { return given_[parameter]; }
  int64_t ranks() const { return ranks_; }
  int64_t elements() const { return elements_; }  // of all parameters, without padding
  int64_t size() const { return size_; }          // of the gathered buffer
  int64_t offset(size_t p) const { return places_[p].offset; }  // in it
  int64_t shard_size() const { return shard_size_; }            // padding included
  int64_t trainable_size() const {
    return trainable_size_;
  }  // of the shard: [0, trainable_size) is trainable
  // Flat: shards in the order of the ranks are the gathered buffer.
  bool in_place() const { return in_place_; }
  size_t cut_dim(size_t p) const { return places_[p].dim; }

  // What of a parameter lies on a rank. rows: the chunk of its cut dimension; flat: elements of the
  // flattened whole.
  Chunk part(size_t parameter, int64_t rank) const;
  int64_t part_elements(size_t parameter, int64_t rank) const;
  // The same as a region of the parameter.
  Region region(size_t parameter, int64_t rank) const;
  // Where that begins in the shard of the rank. 0 when it has nothing of it.
  int64_t at(size_t parameter, int64_t rank) const;
  // By place in the shard.
  std::vector<ShardSlice> slices(int64_t rank) const;

 private:
  struct Place {
    int64_t count = 0, offset = 0;
    size_t dim = 0;
    // rows: before the cut dimension lie `outer` blocks, of which each rank has the same rows;
    // behind it `width` elements a row.
    int64_t outer = 1, width = 1, shard_at = 0;
    // flat: where its buffer begins, gathered and in the shard, and what a rank has of that.
    int64_t begin = 0, each = 0;
  };
  void sort(bool cut_last);
  std::vector<UnitParameter> parameters_;
  std::vector<size_t> given_;
  std::vector<Place> places_;
  int64_t ranks_ = 1, elements_ = 0, size_ = 0, shard_size_ = 0, trainable_size_ = 0;
  bool rows_ = true, in_place_ = false, frozen_whole_ = false;
};

// What a unit holds, in its order.
struct UnitMember {
  std::string_view name;
  bool trainable;
};
// Throws Error(bad_module) where a unit's layout was made from something else than what the unit
// holds now, or for another number of ranks: somebody changed the plan after it was made.
MESHWRIGHT_API void check_unit_layout(const std::string& unit, const UnitLayout& layout,
                                      const std::vector<UnitMember>& members, int64_t ranks);

// `elements`: of each parameter, in the order of the buckets (the last parameter first).
// `element_size`: bytes of one.
MESHWRIGHT_API std::vector<GradientBucket> gradient_buckets(const std::vector<int64_t>& elements,
                                                            int64_t element_size,
                                                            int64_t first_bucket_bytes,
                                                            int64_t bucket_bytes);

}  // namespace meshwright
