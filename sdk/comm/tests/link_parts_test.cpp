// Several connections between two ranks: which carries what.
#include "sdk/comm/parts.h"

#include <ATen/ops/zeros.h>
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <utility>
#include <vector>

#include "meshwright/parallel/group.h"
#include "sdk/base/transport.h"

namespace link_parts_test {

using namespace meshwright;
using at::Tensor;
using meshwright::detail::LinkParts;

namespace {

struct Given {
  std::string what;
  const char* data;
  int64_t bytes;
  int64_t link;
};

// Rank 0 of 2; what it is given to carry goes nowhere.
struct DeadEnd : c10d::Backend {
  DeadEnd(int64_t number, std::vector<Given>& all) : Backend(0, 2), link(number), given(all) {}
  const std::string getBackendName() const override { return "gloo"; }
  c10::intrusive_ptr<c10d::Work> send(std::vector<Tensor>& tensors, int, int) override {
    return take("send", tensors);
  }
  c10::intrusive_ptr<c10d::Work> recv(std::vector<Tensor>& tensors, int, int) override {
    return take("receive", tensors);
  }
  c10::intrusive_ptr<c10d::Work> allreduce(std::vector<Tensor>& tensors,
                                           const c10d::AllreduceOptions&) override {
    return take("sum", tensors);
  }
  c10::intrusive_ptr<c10d::Work> broadcast(std::vector<Tensor>& tensors,
                                           const c10d::BroadcastOptions&) override {
    return take("broadcast", tensors);
  }
  c10::intrusive_ptr<c10d::Work> take(const char* what, const std::vector<Tensor>& tensors) {
    given.push_back({what, static_cast<const char*>(tensors[0].const_data_ptr()),
                     static_cast<int64_t>(tensors[0].nbytes()), link});
    return {};
  }
  int64_t link;
  std::vector<Given>& given;
};

std::shared_ptr<Transport> over(int64_t links, std::vector<Given>& given) {
  std::vector<c10::intrusive_ptr<c10d::Backend>> backends;
  for (int64_t i = 0; i < links; ++i) backends.push_back(c10::make_intrusive<DeadEnd>(i, given));
  return transport_over(std::move(backends));
}

// The links that carry the tensor, in the order of its bytes; none where they do not carry each of
// them once.
std::vector<int64_t> links_of(std::vector<Given> given, const char* what, const Tensor& tensor) {
  std::erase_if(given, [&](const Given& one) { return one.what != what; });
  std::sort(given.begin(), given.end(),
            [](const Given& a, const Given& b) { return a.data < b.data; });
  const auto* next = static_cast<const char*>(tensor.const_data_ptr());
  const char* end = next + tensor.nbytes();
  std::vector<int64_t> out;
  for (const Given& one : given) {
    if (one.data != next) return {};
    next += one.bytes;
    out.push_back(one.link);
  }
  return next == end ? out : std::vector<int64_t>();
}

}  // namespace

TEST_CASE("a message is cut into parts of nearly one size that split no element") {
  struct Row {
    int64_t bytes, connections, parts;
  };
  for (const Row& row :
       {Row{0, 8, 1}, Row{1, 8, 1}, Row{131071, 8, 1}, Row{131072, 8, 2}, Row{131072, 1, 1},
        Row{400012, 3, 3}, Row{400012, 8, 6}, Row{(int64_t{1} << 40) + 16, 8, 8}}) {
    CAPTURE(row.bytes);
    CAPTURE(row.connections);
    const LinkParts parts(row.bytes, row.connections);
    CHECK(parts.number == row.parts);
    CHECK(parts.begin(0) == 0);
    CHECK(parts.begin(parts.number) == row.bytes);
    for (int64_t i = 0; i < parts.number; ++i) {
      CHECK(parts.begin(i) % 64 == 0);
      CHECK(std::abs(parts.size(i) - row.bytes / parts.number) <= 64 * 2);
    }
  }
}

TEST_CASE("every connection carries a part of what is large, and one after the other the rest") {
  std::vector<Given> given;
  auto transport = over(3, given);
  const Tensor mine = at::zeros({100003}), whole = at::zeros({200006});  // 400,012 bytes
  transport->all_gather(mine, whole);
  for (const char* what : {"send", "receive"}) {
    CAPTURE(std::string(what));
    std::vector<int64_t> links =
        links_of(given, what, std::string(what) == "send" ? mine : whole.narrow(0, 100003, 100003));
    std::sort(links.begin(), links.end());
    CHECK(links == std::vector<int64_t>{0, 1, 2});
  }
  for (const char* what : {"sum", "broadcast"}) {
    CAPTURE(std::string(what));
    given.clear();
    if (std::string(what) == "sum")
      transport->all_reduce(mine, ReduceOp::max, /*control=*/false);
    else
      transport->broadcast(mine, 0);
    CHECK(links_of(given, what, mine) == std::vector<int64_t>{0, 1, 2});
  }
  given.clear();
  const Tensor little = at::zeros({300});
  for (int i = 0; i < 6; ++i)
    transport->send_receive(
        std::vector<PeerMessage>{{PeerMessage::Way::send, 1, little.narrow(0, 50 * i, 50)}});
  std::vector<int64_t> links = links_of(given, "send", little);
  REQUIRE(links.size() == 6);
  CHECK(std::vector<int64_t>(links.begin(), links.begin() + 3) ==
        std::vector<int64_t>(links.begin() + 3, links.end()));
  std::sort(links.begin(), links.end());
  CHECK(links == std::vector<int64_t>{0, 0, 1, 1, 2, 2});
  given.clear();
  transport->all_reduce(little, ReduceOp::max, /*control=*/true);
  CHECK(links_of(given, "sum", little) == std::vector<int64_t>{0});
}

TEST_CASE("one connection carries everything whole") {
  std::vector<Given> given;
  const Tensor mine = at::zeros({100003}), whole = at::zeros({200006});
  over(1, given)->all_gather(mine, whole);
  CHECK(links_of(given, "send", mine) == std::vector<int64_t>{0});
}

}  // namespace link_parts_test
