// How what goes over several connections between two ranks is cut.
#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "meshwright/export.h"
#include "meshwright/parallel/group.h"
#include "shared_memory_ring.h"

namespace meshwright::detail {

// So many bytes in parts of nearly one size, as many as there are connections at most. Both ends of
// a message cut alike, whatever dtype each sees: whole grains, which split no element.
struct LinkParts {
  static constexpr int64_t kLeastBytes = int64_t{64}
                                         << 10;  // below that a part is not worth a turn
  static constexpr int64_t kGrain = 64;
  int64_t bytes, number;
  LinkParts(int64_t all, int64_t connections)
      : bytes(all), number(std::clamp<int64_t>(all / kLeastBytes, 1, connections)) {}
  int64_t begin(int64_t part) const {
    return part == number ? bytes : bytes * part / number / kGrain * kGrain;
  }
  int64_t size(int64_t part) const { return begin(part + 1) - begin(part); }
};

// Tensors that lie in equal parts on the ranks of a group: put together, or summed so that each
// rank gets its part. Between the start and the end of either a rank may compute. Over shared
// memory where there is room, which is made at first use.

// Collective; starts at once. The ranks' tensors, all of one shape, one after the other along
// `dim`. Groups of two ranks or more.
class PartsGather {
 public:
  PartsGather(const at::Tensor& own, int64_t dim, Group& group);
  at::Tensor whole();  // waits; once

 private:
  Group& group_;
  int64_t dim_;
  at::Tensor own_, flat_;  // flat_: what sockets bring
  Work under_way_;
};

// Collective. Each rank packs what every other one shall get, starts, and adds what comes to its
// own part. Groups of two ranks or more.
class PartsSum {
 public:
  PartsSum(std::vector<int64_t> part_shape, const at::TensorOptions& options, Group& group);
  at::Tensor slot(int64_t rank) const;  // to fill, for every rank but this one
  void start();
  // Waits. Sums in rank order, so that a repeated run is bitwise identical. Returns a new tensor.
  at::Tensor add_up(const at::Tensor& own);
  // Waits. Adds what the others sent to `own`, in its dtype, in rank order.
  void add_to(at::Tensor& own);

 private:
  int64_t place(int64_t rank) const;    // among the others
  at::Tensor part(int64_t rank) const;  // of another rank, after the wait
  Group& group_;
  std::vector<int64_t> shape_;
  int64_t each_ = 1;
  bool mapped_ = false;
  at::Tensor packed_, received_;
  Work under_way_;
};

// The same values on the device that the group's collectives take tensors of. What the optimizer
// updates may lie on the host.
at::Tensor where_sent(const at::Tensor& tensor, const Group& group);

// Room in shared memory for tensors of so many bytes, where there can be any; all ranks come here
// with the same number.
void make_room(Group& group, int64_t bytes);

// Shared memory that several ranks open together, or none of them.

// MESHWRIGHT_SHARED_MEMORY is not 0.
bool wants_shared_memory();

// Collective over `ranks` ranks, this one being `rank` of them. A ring that all have opened, or
// nothing. The first makes the memory, which has no name, and hands it to the others; who cannot
// come to it is on another host. `sum` adds a tensor up over them.
MESHWRIGHT_API std::unique_ptr<SharedMemoryRing> make_ring(
    int64_t rank, int64_t ranks, const SharedMemoryRing::Sizes& sizes,
    const std::function<void(const at::Tensor&)>& sum);

}  // namespace meshwright::detail
