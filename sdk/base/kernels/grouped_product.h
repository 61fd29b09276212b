// Products of float32 rows that lie by group (by expert, say), all groups in one launch, and their
// sizes on the device alone. LibTorch has them for bfloat16. Part of the text that kernels.h
// belongs to.
namespace meshwright::kernels {

struct alignas(16) Four {
  float at[4];
};

// Of one result of kTile x kTile, a thread has 4 x 4.
struct TileSums {
  float at[4][4];
};

// out = scale * a b of each group. Factors pass through the block's memory, kDepth of the inner
// dimension at a time.
inline void grouped_product(const Team<kBlock>& team, const GroupedProduct& to) {
  constexpr int kTile = GroupedProduct::kTile, kDepth = GroupedProduct::kDepth,
                kStride = GroupedProduct::kStride;
  float *a = team.memory(GroupedProduct::kFloats), *b = a + kDepth * kStride;
  auto tiles = [](long long size) { return (size + kTile - 1) / kTile; };
  const bool sums_rows = to.sums_rows != 0;
  const long long columns = tiles(to.width), heights = tiles(to.height),
                  most = (sums_rows ? to.groups * heights : to.rows / kTile + to.groups) * columns;
  Team<kBlock>::Own<TileSums> own;
  for (long long tile = team.index(); tile < most; tile += team.count()) {
    // Which group's, and where in its result.
    long long stripe = tile / columns;
    const long long column = tile % columns * kTile;
    int group = 0;
    if (sums_rows) {
      group = (int)(stripe / heights);
      stripe %= heights;
    } else {
      while (group < to.groups && stripe >= tiles(to.bounds[group + 1] - to.bounds[group])) {
        stripe -= tiles(to.bounds[group + 1] - to.bounds[group]);
        ++group;
      }
      if (group == to.groups) break;  // there are fewer than may be
    }
    const long long first = to.bounds[group], count = to.bounds[group + 1] - first,
                    row = stripe * kTile, height = sums_rows ? to.height : count,
                    inner = sums_rows ? count : to.inner;
    const float *from_a = to.a + first * (sums_rows ? to.height : to.inner),
                *from_b = to.b + (sums_rows ? first * to.width : group * to.inner * to.width);
    const long long a_row = sums_rows ? 1 : to.inner, a_inner = sums_rows ? to.height : 1,
                    b_inner = to.b_inner, b_column = to.b_column;
    team.each(kBlock, [&](long long thread) { own.of(thread) = TileSums{}; });
    for (long long depth = 0; depth < inner; depth += kDepth) {
      // Neighbours in memory go to neighbouring threads.
      team.each(kTile * kDepth, [&](long long i) {
        const int p = (int)(sums_rows ? i / kTile : i % kDepth),
                  r = (int)(sums_rows ? i % kTile : i / kDepth);
        a[p * kStride + r] = row + r < height && depth + p < inner
                                 ? from_a[(row + r) * a_row + (depth + p) * a_inner]
                                 : 0;
      });
      team.each(kTile * kDepth, [&](long long i) {
        const int p = (int)(b_column == 1 ? i / kTile : i % kDepth),
                  c = (int)(b_column == 1 ? i % kTile : i / kDepth);
        b[p * kStride + c] = column + c < to.width && depth + p < inner
                                 ? from_b[(depth + p) * b_inner + (column + c) * b_column]
                                 : 0;
      });
      team.synchronize();
      team.each(kBlock, [&](long long thread) {
        TileSums& sums = own.of(thread);
        const int r = (int)thread / 16 * 4, c = (int)thread % 16 * 4;
        for (int p = 0; p < kDepth; ++p) {
          const Four x = *(const Four*)(a + p * kStride + r),
                     y = *(const Four*)(b + p * kStride + c);
          for (int i = 0; i < 4; ++i)
            for (int j = 0; j < 4; ++j)
              sums.at[i][j] = multiply_add(x.at[i], y.at[j], sums.at[i][j]);
        }
      });
      team.synchronize();
    }
    team.each(kBlock, [&](long long thread) {
      const TileSums& sums = own.of(thread);
      const long long r = row + thread / 16 * 4, c = column + thread % 16 * 4;
      float* out = to.out + (sums_rows ? group * to.height * to.width : first * to.width);
      for (int i = 0; i < 4; ++i)
        for (int j = 0; j < 4; ++j)
          if (r + i < height && c + j < to.width) {
            float& into = out[(r + i) * to.width + c + j];
            const float value = to.scale * sums.at[i][j];
            into = to.add != 0 ? into + value : value;
          }
    });
  }
}

}  // namespace meshwright::kernels
