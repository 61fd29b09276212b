// Tensors that lie in equal parts on the ranks of a group: put together, or summed so that each
// rank gets its part. Between the start and the end of either a rank may compute. Over shared
// memory where there is room, which is made at first use.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "meshwright/parallel/group.h"

namespace meshwright::detail {

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

}  // namespace meshwright::detail
