#include "unit_layout.h"

#include <algorithm>
#include <numeric>

#include "footprint_parts.h"
#include "meshwright/error.h"
#include "meshwright/outline.h"

namespace meshwright {

// Sums stop at the largest number: no configuration is too large to be costed.
using footprint::plus;
using footprint::times;

void mark_cut(UnitParameter& parameter, std::vector<int64_t> whole, size_t dim, int64_t tp) {
  int64_t& size = whole[dim];
  parameter.cut = true;
  parameter.uneven = size % tp != 0;
  size = size / tp + (size % tp != 0);
  parameter.largest = element_count(whole);
}

void UnitLayout::sort(bool cut_last) {
  std::vector<size_t> order(parameters_.size());
  std::iota(order.begin(), order.end(), size_t{0});
  auto turn = [&](size_t p) {
    return (parameters_[p].trainable ? 0 : 2) + (cut_last && parameters_[p].cut ? 1 : 0);
  };
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return turn(a) < turn(b); });
  std::vector<UnitParameter> sorted;
  sorted.reserve(order.size());
  for (size_t p : order) sorted.push_back(std::move(parameters_[p]));
  parameters_ = std::move(sorted);
  given_ = std::move(order);
  places_.resize(parameters_.size());
  for (size_t p = 0; p < places_.size(); ++p) {
    places_[p].count = element_count(parameters_[p].sizes);
    elements_ = plus(elements_, places_[p].count);
  }
}

UnitLayout UnitLayout::rows(std::vector<UnitParameter> parameters, int64_t ranks, size_t dim,
                            const std::string& axis) {
  UnitLayout out;
  out.parameters_ = std::move(parameters);
  out.ranks_ = ranks;
  out.sort(/*cut_last=*/false);
  for (size_t i = 0; i < out.places_.size(); ++i) {
    const UnitParameter& p = out.parameters_[i];
    Place& place = out.places_[i];
    place.offset = out.size_;
    place.dim = p.sizes.size() > dim ? dim : 0;
    int64_t rows = p.sizes[place.dim], chunk = rows / ranks + (rows % ranks != 0);
    for (size_t d = 0; d < place.dim; ++d) place.outer *= p.sizes[d];
    place.width = rows == 0 || place.outer == 0 ? 0 : place.count / rows / place.outer;
    if (place.dim > 0 && rows % ranks != 0)
      throw Error(ErrorCode::model_does_not_fit, "dimension " + std::to_string(place.dim) + " of " +
                                                     p.name + " is " + std::to_string(rows) +
                                                     ", which the " + std::to_string(ranks) +
                                                     " ranks of " + axis + " do not divide");
    place.shard_at = out.shard_size_;
    out.size_ = plus(out.size_, place.count);
    out.shard_size_ = plus(out.shard_size_, times(place.outer, chunk, place.width));
    if (p.trainable) out.trainable_size_ = out.shard_size_;
  }
  return out;
}

UnitLayout UnitLayout::flat(std::vector<UnitParameter> parameters, int64_t ranks,
                            bool frozen_whole) {
  UnitLayout out;
  out.parameters_ = std::move(parameters);
  out.ranks_ = ranks;
  out.rows_ = false;
  out.frozen_whole_ = frozen_whole;
  auto all = [&](bool trainable) {
    return std::all_of(out.parameters_.begin(), out.parameters_.end(),
                       [&](const UnitParameter& p) { return p.trainable == trainable; });
  };
  out.in_place_ = frozen_whole || all(true) || all(false);
  out.sort(std::any_of(out.parameters_.begin(), out.parameters_.end(),
                       [](const UnitParameter& p) { return p.uneven; }));
  for (bool trainable : {true, false}) {
    int64_t begin = out.size_, most = 0;
    for (size_t i = 0; i < out.places_.size(); ++i) {
      const UnitParameter& p = out.parameters_[i];
      Place& place = out.places_[i];
      if (p.trainable != trainable) continue;
      place.offset = out.size_;
      place.begin = begin;
      place.shard_at = out.shard_size_;
      out.size_ = plus(out.size_, place.count);
      most = plus(most, ranks == 1 ? place.count : std::max(place.count, p.largest));
    }
    if (!trainable && frozen_whole) break;
    int64_t each = most / ranks + (most % ranks != 0);
    for (size_t i = 0; i < out.places_.size(); ++i)
      if (out.parameters_[i].trainable == trainable) out.places_[i].each = each;
    if (out.in_place_) out.size_ = plus(begin, times(each, ranks));
    out.shard_size_ = plus(out.shard_size_, each);
    if (trainable) out.trainable_size_ = out.shard_size_;
  }
  return out;
}

Chunk UnitLayout::part(size_t parameter, int64_t rank) const {
  const Place& place = places_[parameter];
  if (rows_) return ceil_chunk(parameters_[parameter].sizes[place.dim], ranks_, rank);
  int64_t start = place.offset - place.begin;
  auto within = [&](int64_t element) {
    return std::clamp<int64_t>(element - start, 0, place.count);
  };
  return {within(times(place.each, rank)), within(times(place.each, rank + 1))};
}

int64_t UnitLayout::part_elements(size_t parameter, int64_t rank) const {
  Chunk chunk = part(parameter, rank);
  const Place& place = places_[parameter];
  return rows_ ? times(place.outer, chunk.end - chunk.begin, place.width) : chunk.end - chunk.begin;
}

Region UnitLayout::region(size_t parameter, int64_t rank) const {
  const Place& place = places_[parameter];
  Chunk chunk = part(parameter, rank);
  Region out = Region::whole(parameters_[parameter].sizes);
  if (rows_) {
    out.offsets[place.dim] = chunk.begin;
    out.sizes[place.dim] = chunk.end - chunk.begin;
  } else if (ranks_ > 1) {
    out = chunk.end > chunk.begin ? Region::run(chunk.begin, chunk.end)
                                  : Region::run(place.count, place.count);
  }
  return out;
}

int64_t UnitLayout::at(size_t parameter, int64_t rank) const {
  const Place& place = places_[parameter];
  if (rows_) return place.shard_at;
  Chunk chunk = part(parameter, rank);
  return chunk.end > chunk.begin
             ? place.shard_at + place.offset - place.begin + chunk.begin - times(place.each, rank)
             : 0;
}

std::vector<ShardSlice> UnitLayout::slices(int64_t rank) const {
  std::vector<ShardSlice> out;
  for (size_t i = 0; i < places_.size(); ++i) {
    const Place& place = places_[i];
    Chunk chunk = part(i, rank);
    int64_t count = chunk.end - chunk.begin;
    if (count <= 0 || (frozen_whole_ && !parameters_[i].trainable)) continue;
    if (!rows_) {
      out.push_back({i, chunk.begin, at(i, rank), count});
      continue;
    }
    int64_t rows = parameters_[i].sizes[place.dim], most = rows / ranks_ + (rows % ranks_ != 0);
    for (int64_t o = 0; o < place.outer; ++o)
      out.push_back({i, (o * rows + chunk.begin) * place.width,
                     place.shard_at + o * most * place.width, count * place.width});
  }
  return out;
}

void check_unit_layout(const std::string& unit, const UnitLayout& layout,
                       const std::vector<UnitMember>& members, int64_t ranks) {
  auto refuse = [&](const std::string& why) {
    return Error(ErrorCode::bad_module,
                 "the layout of unit \"" + unit + "\" is not that of its parameters: " + why)
        .help(
            "set PlannedUnit::layout = nullptr in every unit whose parameters change after the "
            "plan was made: it is laid out again")
        .help("register_unit_rule() says which parameters form a unit before they are laid out");
  };
  const std::vector<UnitParameter>& planned = layout.parameters();
  if (planned.size() != members.size())
    throw refuse("it was made for " + std::to_string(planned.size()) +
                 " parameters, and the unit has " + std::to_string(members.size()));
  for (size_t i = 0; i < planned.size(); ++i) {
    const UnitMember& member = members[layout.given(i)];
    if (planned[i].name != member.name)
      throw refuse("it was made for " + planned[i].name + " where the unit has " +
                   std::string(member.name));
    if (planned[i].trainable != member.trainable)
      throw refuse(planned[i].name + (member.trainable ? " was frozen then and is trainable"
                                                       : " was trainable then and is frozen"));
  }
  if (layout.ranks() != ranks)
    throw refuse("it was made for " + std::to_string(layout.ranks()) + " ranks, and " +
                 std::to_string(ranks) + " share the unit");
}

std::vector<GradientBucket> gradient_buckets(const std::vector<int64_t>& elements,
                                             int64_t element_size, int64_t first_bucket_bytes,
                                             int64_t bucket_bytes) {
  std::vector<GradientBucket> buckets;
  bool open = false;
  int64_t end = 0;
  for (size_t i = 0; i < elements.size(); ++i) {
    if (!open) buckets.push_back({end, end, {}});
    GradientBucket& bucket = buckets.back();
    bucket.end = end = plus(end, elements[i]);
    bucket.members.push_back(i);
    int64_t limit = buckets.size() == 1 ? std::min(first_bucket_bytes, bucket_bytes) : bucket_bytes;
    open = times(bucket.end - bucket.begin, element_size) < limit;
  }
  return buckets;
}

}  // namespace meshwright
