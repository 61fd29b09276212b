// Tensors of a device as the host reads them (engine/train/run/host_reads.h), in several batches.
#include "engine/train/run/host_reads.h"

#include <ATen/Context.h>
#include <ATen/Functions.h>
#include <doctest/doctest.h>

#include <cstddef>
#include <span>
#include <vector>

namespace host_reads_test {

using at::Tensor;
using Bytes = std::vector<std::byte>;

Bytes bytes_of(const Tensor& tensor) {
  const Tensor host = tensor.cpu();
  const auto* begin = static_cast<const std::byte*>(host.const_data_ptr());
  return {begin, begin + host.nbytes()};
}

}  // namespace host_reads_test

using namespace host_reads_test;

TEST_CASE("tensors of a device come whole and in order, in pieces as batches end") {
  at::globalContext().lazyInitDevice(at::kCUDA);
  const at::TensorOptions device = at::TensorOptions().device(at::kCUDA, 0);
  auto numbers = [](int64_t count) { return at::arange(count, at::kInt); };
  // Of 24, 40, 0, 12 (on the host), 64, 6 and 4 bytes.
  const std::vector<Tensor> tensors{
      numbers(6).to(device),          numbers(10).view({2, 5}).to(device),
      at::empty({0, 3}, device),      numbers(3),
      numbers(16).to(device),         numbers(3).to(at::kBFloat16).to(device),
      numbers(1).squeeze().to(device)};
  struct Row {
    int64_t batch;
    std::vector<size_t> pieces;  // of each tensor
  };
  for (const Row& row : {Row{1 << 20, {1, 1, 0, 1, 1, 1, 1}},  // one batch for all
                         Row{64, {1, 1, 0, 1, 1, 1, 1}},       // ends with the second and the fifth
                         Row{50, {1, 2, 0, 1, 2, 1, 1}},       // bytes 50 and 100 of 138 are ends
                         Row{16, {2, 3, 0, 1, 4, 1, 1}}}) {    // every sixteenth byte is
    CAPTURE(row.batch);
    meshwright::train::HostReads reads(tensors, row.batch);
    for (size_t i = 0; i < tensors.size(); ++i) {
      CAPTURE(i);
      Bytes found;
      size_t pieces = 0;
      reads.next([&](std::span<const std::byte> piece) {
        found.insert(found.end(), piece.begin(), piece.end());
        ++pieces;
      });
      CHECK((found == bytes_of(tensors[i])));
      CHECK(pieces == row.pieces[i]);
    }
  }
}
