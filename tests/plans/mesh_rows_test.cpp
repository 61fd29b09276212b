// Every worked example of the mesh rules, through the four plugins as they are shipped.
#include <doctest/doctest.h>

#include <algorithm>
#include <cctype>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "engine/plugins/registry.h"
#include "meshwright/strategy.h"
#include "sdk/base/shared_schemas.h"

// The worked examples of mesh planning: one row a line, "NAME [generation] strategy Wworld sizes ->
// result". Sizes "-" = none given. Result: shape, then "moe" shape, then F = FSDP mesh, then
// groups: "/" separates groups, "/../" leaves out all but the first and the last, names joined by
// "=" have the same groups. rep, shard, sc, dc, eps = dp_replicate, dp_shard, dp_shard_cp, dp_cp,
// ep_shard. "V", "R" = refused.
constexpr const char* kMeshRows = R"rows(
1  fsdp2 W1  -                      -> 1x1x1x1x1; F shard 1
2  fsdp2 W2  -                      -> 1x1x2x1x1; F shard 2; shard=dp=sc=dc 0,1
3  fsdp2 W4  tp=4                   -> 1x1x1x1x4; F shard 1; tp 0-3
4  fsdp2 W4  tp=2                   -> 1x1x2x1x2; F shard 2; shard=dp=sc=dc 0,2/1,3; tp 0,1/2,3
5  fsdp2 W4  cp=2                   -> 1x1x2x2x1; F sc 4; shard=dp 0,2/1,3; cp 0,1/2,3; sc=dc 0-3
6  fsdp2 W4  pp=2                   -> 2x1x2x1x1; F shard 2; pp 0,2/1,3; shard=dp=sc=dc 0,1/2,3
7  fsdp2 W8  tp=2 pp=2              -> 2x1x2x1x2; F shard 2; pp 0,4/1,5/2,6/3,7; shard=dp=sc=dc 0,2/1,3/4,6/5,7; tp 0,1/2,3/4,5/6,7
8  fsdp2 W8  tp=2 cp=2              -> 1x1x2x2x2; F sc 4; shard=dp 0,4/1,5/2,6/3,7; cp 0,2/1,3/4,6/5,7; tp 0,1/2,3/4,5/6,7; sc=dc 0,2,4,6/1,3,5,7
9  fsdp2 W8  rep=2                  -> 1x2x4x1x1; F rep 2 x shard 4; rep 0,4/1,5/2,6/3,7; shard=sc 0-3/4-7; dp=dc 0-7
10 fsdp2 W8  rep=4                  -> 1x4x2x1x1; F rep 4 x shard 2; rep 0,2,4,6/1,3,5,7; shard=sc 0,1/2,3/4,5/6,7; dp=dc 0-7
11 fsdp2 W8  rep=8                  -> V rep must be < dp
12 fsdp2 W8  rep=3                  -> V dp not a multiple of rep
13 fsdp2 W8  rep=2 cp=2             -> 1x2x2x2x1; F rep 2 x sc 4; rep 0,4/1,5/2,6/3,7; shard 0,2/1,3/4,6/5,7; cp 0,1/2,3/4,5/6,7; dp 0,2,4,6/1,3,5,7; sc 0-3/4-7; dc 0-7
14 fsdp2 W8  rep=2 tp=2             -> 1x2x2x1x2; F rep 2 x shard 2; rep 0,4/1,5/2,6/3,7; shard=sc 0,2/1,3/4,6/5,7; tp 0,1/2,3/4,5/6,7; dp=dc 0,2,4,6/1,3,5,7
15 fsdp2 W8  rep=2 tp=2 pp=2        -> V rep must be < dp
16 fsdp2 W16 rep=2 tp=2 pp=2        -> 2x2x2x1x2; F rep 2 x shard 2; pp 0,8/../7,15; rep 0,4/../11,15; shard=sc 0,2/../13,15; tp 0,1/../14,15; dp=dc 0,2,4,6/../9,11,13,15
17 fsdp2 W16 rep=2 tp=2 cp=2        -> 1x2x2x2x2; F rep 2 x sc 4; rep 0,8/../7,15; shard 0,4/../11,15; cp 0,2/../13,15; tp 0,1/../14,15; dp 0,4,8,12/../3,7,11,15; sc 0,2,4,6/../9,11,13,15; dc 0,2,4,6,8,10,12,14/../1,3,5,7,9,11,13,15
18 fsdp2 W32 rep=2 tp=2 cp=2 pp=2   -> 2x2x2x2x2; F rep 2 x sc 4; pp 0,16/../15,31; rep 0,8/../23,31; shard 0,4/../27,31; cp 0,2/../29,31; tp 0,1/../30,31; dp 0,4,8,12/../19,23,27,31; sc 0,2,4,6/../25,27,29,31; dc 0,2,4,6,8,10,12,14/../17,19,21,23,25,27,29,31
19 fsdp2 W8  tp=3                   -> V world 8 not divisible by 3 * 1 * 1 = 3
20 fsdp2 W8  tp=2 cp=3              -> V world 8 not divisible by 2 * 3 * 1 = 6
21 fsdp2 W8  tp=0 cp=-1             -> 1x1x8x1x1; F shard 8; shard=dp=sc=dc 0-7
22 fsdp2 W8  tp=none pp=none cp=none ep=none -> 1x1x8x1x1; F shard 8; shard=dp=sc=dc 0-7
23 fsdp2 W8  dp=0                   -> 1x1x8x1x1; F shard 8; shard=dp=sc=dc 0-7
24 fsdp2 W8  dp=-1 tp=2             -> 1x1x4x1x2; F shard 4; shard=dp=sc=dc 0,2,4,6/1,3,5,7; tp 0,1/2,3/4,5/6,7
25 fsdp2 W8  dp=4 tp=2              -> 1x1x4x1x2; F shard 4; shard=dp=sc=dc 0,2,4,6/1,3,5,7; tp 0,1/2,3/4,5/6,7
26 fsdp2 W8  dp=2 tp=2              -> R opaque, on ranks 4-7 only (ranks 0-3 succeed); [use] V
27 fsdp2 W8  dp=8 tp=2              -> R mesh bigger than world (16 > 8); [use] V
28 fsdp2 W8  ep=8                   -> 1x1x8x1x1; moe 1x8; F shard 8; shard=dp=sc=dc=ep 0-7
29 fsdp2 W8  ep=4                   -> 1x1x8x1x1; moe 2x4; F shard 8; shard=dp=sc=dc 0-7; eps 0,4/1,5/2,6/3,7; ep 0-3/4-7
30 fsdp2 W8  ep=2                   -> 1x1x8x1x1; moe 4x2; F shard 8; shard=dp=sc=dc 0-7; eps 0,2,4,6/1,3,5,7; ep 0,1/2,3/4,5/6,7
31 fsdp2 W8  ep=3                   -> V dp*cp*tp = 8, not a multiple of ep 3
32 fsdp2 W8  ep=16                  -> V dp*cp*tp = 8, not a multiple of ep 16
33 fsdp2 W8  ep=4 tp=2              -> 1x1x4x1x2; moe 2x4; F shard 4; shard=dp=sc=dc 0,2,4,6/1,3,5,7; tp 0,1/2,3/4,5/6,7; eps 0,4/1,5/2,6/3,7; ep 0-3/4-7
34 fsdp2 W8  ep=8 tp=2              -> 1x1x4x1x2; moe 1x8; F shard 4; shard=dp=sc=dc 0,2,4,6/1,3,5,7; tp 0,1/2,3/4,5/6,7; ep 0-7
35 fsdp2 W8  ep=2 cp=2              -> 1x1x4x2x1; moe 4x2; F sc 8; shard=dp=eps 0,2,4,6/1,3,5,7; cp=ep 0,1/2,3/4,5/6,7; sc=dc 0-7
36 fsdp2 W8  ep=4 pp=2              -> 2x1x4x1x1; moe 1x4; F shard 4; pp 0,4/1,5/2,6/3,7; shard=dp=sc=dc=ep 0-3/4-7
37 fsdp2 W8  ep=2 pp=2              -> 2x1x4x1x1; moe 2x2; F shard 4; pp 0,4/1,5/2,6/3,7; shard=dp=sc=dc 0-3/4-7; eps 0,2/1,3/4,6/5,7; ep 0,1/2,3/4,5/6,7
38 fsdp2 W8  ep=8 pp=2              -> V dp*cp*tp = 4, not a multiple of ep 8
39 fsdp2 W8  ep=4 rep=2             -> 1x2x4x1x1; moe 2x4; F rep 2 x shard 4; rep=eps 0,4/1,5/2,6/3,7; shard=sc=ep 0-3/4-7; dp=dc 0-7
40 fsdp2 W16 ep=4 pp=2 cp=2         -> 2x1x4x2x1; moe 2x4; F sc 8; pp 0,8/../7,15; shard=dp 0,2,4,6/../9,11,13,15; cp 0,1/../14,15; sc=dc 0-7/../8-15; eps 0,4/../11,15; ep 0-3/../12-15
41 fsdp2 W16 ep=8 tp=2 rep=2        -> 1x2x4x1x2; moe 2x8; F rep 2 x shard 4; rep=eps 0,8/../7,15; shard=sc 0,2,4,6/../9,11,13,15; tp 0,1/../14,15; dp=dc 0,2,4,6,8,10,12,14/../1,3,5,7,9,11,13,15; ep 0-7/../8-15
42 fsdp2 W1  ep=2                   -> V dp*cp*tp = 1, not a multiple of ep 2
43 fsdp2 W4  pp=4                   -> 4x1x1x1x1; F shard 1; pp 0-3
44 fsdp2 W6  tp=2                   -> 1x1x3x1x2; F shard 3; shard=dp=sc=dc 0,2,4/1,3,5; tp 0,1/2,3/4,5
45 fsdp2 W12 tp=2 pp=3              -> 3x1x2x1x2; F shard 2; pp 0,4,8/../3,7,11; shard=dp=sc=dc 0,2/../9,11; tp 0,1/../10,11
46 fsdp2 W4  tp="2"                 -> 1x1x4x1x1; F shard 4; shard=dp=sc=dc 0-3
47 fsdp2 W4  rep=0                  -> 1x1x4x1x1; F shard 4; shard=dp=sc=dc 0-3
48 mfsdp W1  -                      -> 1x1x1
49 mfsdp W8  -                      -> 8x1x1; dp 0-7
50 mfsdp W8  tp=2                   -> 4x1x2; dp 0,2,4,6/1,3,5,7; tp 0,1/2,3/4,5/6,7
51 mfsdp W8  cp=2                   -> 4x2x1; dp 0,2,4,6/1,3,5,7; cp 0,1/2,3/4,5/6,7; dc 0-7
52 mfsdp W8  tp=2 cp=2              -> 2x2x2; dp 0,4/1,5/2,6/3,7; cp 0,2/1,3/4,6/5,7; tp 0,1/2,3/4,5/6,7; dc 0,2,4,6/1,3,5,7
53 mfsdp W2  tp=2                   -> 1x1x2; tp 0,1
54 mfsdp W8  tp=3                   -> V world 8 not divisible by 3 * 1 = 3
55 mfsdp W8  pp=2                   -> V (pp > 1)
56 mfsdp W8  ep=2                   -> V (ep > 1)
57 mfsdp W8  rep=2                  -> V rep is FSDP2 only
58 mfsdp W8  rep=1                  -> 8x1x1; dp 0-7
59 mfsdp W8  dp=4 tp=2              -> 4x1x2; dp 0,2,4,6/1,3,5,7; tp 0,1/2,3/4,5/6,7
60 mfsdp W8  dp=3 tp=2              -> upstream: accepted on ranks 0-5, opaque failure on 6,7; [use] V
61 ddp   W8  -                      -> no mesh, no moe mesh
62 ddp   W8  dp=8                   -> no mesh, no moe mesh
63 ddp   W8  dp=5                   -> no mesh, no moe mesh
64 ddp   W8  tp=2                   -> V (tp > 1)
65 ddp   W8  pp=2                   -> V (pp > 1)
66 ddp   W8  cp=2                   -> V (cp > 1)
67 ddp   W8  ep=2                   -> V (ep > 1)
68 ddp   W8  rep=2                  -> V rep is FSDP2 only
69 ddp   W8  rep=1                  -> no mesh, no moe mesh
70 fsdp2 W8  ranks=[0,1,2,3] dp=2 tp=2 -> 1x1x2x1x2; F shard 2; shard 0,2/1,3; tp 0,1/2,3; dp = sc = dc = shard; ranks 4-7 hold no groups
71 fsdp2 W8  ranks=[4,5,6,7] dp=2 tp=2 -> 1x1x2x1x2; F shard 2; shard 4,6/5,7; tp 4,5/6,7; dp = sc = dc = shard; ranks 0-3 hold no groups
72 fsdp2 W8  ranks=[0,1,2] dp=2 tp=2 -> V rank list length 3, mesh 4
73 fsdp2 W8  ranks=[0,1,1,2] dp=2 tp=2 -> V duplicate ranks
S1 S26 fsdp2 W8  ep=8            -> moe (pp,ep_shard,ep) = 1x1x8; ep 0-7
S2 S26 fsdp2 W8  ep=2            -> moe 1x4x2; ep 0,1/2,3/4,5/6,7; eps 0,2,4,6/1,3,5,7
S3 S26 fsdp2 W8  ep=2 pp=2       -> moe 2x2x2; pp 0,4/1,5/2,6/3,7; eps 0,2/1,3/4,6/5,7; ep 0,1/2,3/4,5/6,7
L1 fsdp2 W64 tp=8                -> 1x1x8x1x8; tp of rank 0: 0-7; shard of rank 0: 0,8,..,56
L2 fsdp2 W64 pp=2 ep=32          -> 2x1x32x1x1; moe 1x32 per stage; ep 0-31/32-63
L3 fsdp2 W64 pp=2 cp=2 tp=2 rep=2 ep=16 -> dp=8: 2x2x4x2x2; F rep 2 x sc 8; moe 2x16; ep 0-15/16-31/32-47/48-63; eps of rank 0: 0,16
)rows";

namespace {

using namespace meshwright;
using Groups = std::vector<std::vector<int64_t>>;

loader::Registry& registry() {
  static loader::Registry instance([] {
    loader::SearchPath search;
    search.standard_places = false;
    search.folders = {MESHWRIGHT_BUILD_DIR "/lib/meshwright/plugins"};
    return search;
  }());
  return instance;
}

// What a user's sizes become: the [distributed] table through its schema, then the strategy's own
// defaults.
MeshRequest request_of(const loader::LoadedStrategy& strategy, int64_t world,
                       const std::map<std::string, std::string>& sizes,
                       std::vector<int64_t> ranks) {
  MeshRequest request;
  request.world_size = world;
  request.ranks = std::move(ranks);
  Options distributed(distributed_schema());
  for (const auto& [name, text] : sizes) {
    OptionValue value;
    if (text == "none")
      value = std::string("none");
    else if (text.front() == '"')
      value = text.substr(1, text.size() - 2);
    else
      value = static_cast<int64_t>(std::stoll(text));
    distributed.set(name == "rep" ? "dp_replicate_size" : name + "_size", value);
  }
  Diagnostics diagnostics;
  request.config.shared() = read_shared_options(distributed, diagnostics);
  diagnostics.throw_if_any();
  request.config.distributed() = distributed;
  request.config.own() = Options(strategy.info->schema);
  return request;
}

struct Row {
  std::string name, strategy, result;
  int64_t world = 0;
  std::map<std::string, std::string> sizes;
  std::vector<int64_t> ranks;
};

std::vector<int64_t> numbers_in(const std::string& text) {
  std::vector<int64_t> out;
  std::istringstream in(text);
  for (std::string item; std::getline(in, item, ',');) {
    size_t dash = item.find('-');
    if (dash == std::string::npos) {
      out.push_back(std::stoll(item));
      continue;
    }
    for (int64_t i = std::stoll(item.substr(0, dash)); i <= std::stoll(item.substr(dash + 1)); ++i)
      out.push_back(i);
  }
  return out;
}

std::vector<Row> rows() {
  std::vector<Row> out;
  std::istringstream in(kMeshRows);
  for (std::string line; std::getline(in, line);) {
    size_t arrow = line.find("->");
    if (arrow == std::string::npos) continue;
    Row row;
    row.result = line.substr(arrow + 3);
    std::istringstream words(line.substr(0, arrow));
    words >> row.name >> row.strategy;
    if (row.strategy == "S26") words >> row.strategy;
    if (row.strategy == "mfsdp") row.strategy = "megatron_fsdp";
    std::string word;
    words >> word;
    row.world = std::stoll(word.substr(1));
    while (words >> word) {
      size_t equals = word.find('=');
      if (equals == std::string::npos) continue;  // "-"
      std::string key = word.substr(0, equals), value = word.substr(equals + 1);
      if (key == "ranks")
        row.ranks = numbers_in(value.substr(1, value.size() - 2));
      else
        row.sizes[key] = value;
    }
    out.push_back(row);
  }
  return out;
}

MeshPlan plan_of(const Row& row) {
  loader::LoadedStrategy strategy = registry().find(row.strategy);
  MeshPlan plan =
      strategy.strategy->plan_mesh(request_of(strategy, row.world, row.sizes, row.ranks));
  if (plan.delegate_to.empty()) return plan;
  strategy = registry().find(plan.delegate_to);
  return strategy.strategy->plan_mesh(request_of(strategy, row.world, row.sizes, row.ranks));
}

std::string full_name(const std::string& name) {
  static const std::map<std::string, std::string> names = {{"rep", "dp_replicate"},
                                                           {"shard", "dp_shard"},
                                                           {"sc", "dp_shard_cp"},
                                                           {"dc", "dp_cp"},
                                                           {"eps", "ep_shard"}};
  auto it = names.find(name);
  return it == names.end() ? name : it->second;
}

std::string shape_of(const Mesh& mesh, bool with_pp = true) {
  std::string out;
  for (const MeshAxis& axis : mesh.axes())
    if (with_pp || axis.name != "pp") out += (out.empty() ? "" : "x") + std::to_string(axis.size);
  return out;
}

Groups groups_of(const MeshPlan& plan, const std::string& axis) {
  const Mesh& mesh = plan.device_mesh->has_axis(axis) ? *plan.device_mesh : *plan.moe_mesh;
  Groups out;
  mesh.for_each_group(
      axis, [&](std::span<const int64_t> group) { out.emplace_back(group.begin(), group.end()); });
  // Each member sees the same group.
  for (const std::vector<int64_t>& group : out)
    for (int64_t rank : group) CHECK(mesh.group(rank, axis) == group);
  return out;
}

std::string trimmed(std::string text) {
  while (!text.empty() && text.front() == ' ') text.erase(0, 1);
  while (!text.empty() && text.back() == ' ') text.pop_back();
  return text;
}

// "0,8,..,56": equal steps.
bool ellipsis_matches(const std::string& text, const std::vector<int64_t>& group) {
  size_t at = text.find(",..,");
  std::vector<int64_t> first = numbers_in(text.substr(0, at)),
                       last = numbers_in(text.substr(at + 4));
  return group.size() > 2 && group[0] == first[0] && group[1] == first[1] &&
         group.back() == last[0];
}

void check_groups(const MeshPlan& plan, const std::string& names, const std::string& text) {
  std::istringstream in(names);
  for (std::string name; std::getline(in, name, '=');) {
    INFO("axis ", full_name(name), " should have groups ", text);
    Groups found = groups_of(plan, full_name(name));
    std::vector<std::string> wanted;
    std::istringstream parts(text);
    for (std::string part; std::getline(parts, part, '/');) wanted.push_back(part);
    REQUIRE(!wanted.empty());
    bool gap = std::ranges::find(wanted, "..") != wanted.end();
    if (wanted.size() > 1 && !gap) REQUIRE(found.size() == wanted.size());
    auto same = [&](const std::string& w, const std::vector<int64_t>& group) {
      if (w.find(",..,") != std::string::npos) return ellipsis_matches(w, group);
      return numbers_in(w) == group;
    };
    if (gap) {
      CHECK(same(wanted.front(), found.front()));
      CHECK(same(wanted.back(), found.back()));
    } else {
      for (size_t i = 0; i < wanted.size(); ++i) CHECK(same(wanted[i], found[i]));
    }
  }
}

void check_result(const Row& row, const MeshPlan& plan) {
  if (row.result.starts_with("no mesh")) {
    CHECK(!plan.device_mesh);
    CHECK(!plan.moe_mesh);
    CHECK(plan.dp == row.world);
    return;
  }
  std::istringstream parts(row.result);

  std::set<std::string> named;
  for (std::string part; std::getline(parts, part, ';');) {
    part = trimmed(part);
    INFO("part: ", part);
    if (part.empty() || part.starts_with("ranks ")) continue;
    if (size_t colon = part.find(": "); colon != std::string::npos && part.starts_with("dp="))
      part = part.substr(colon + 2);  // L3: "dp=8: 2x2x4x2x2"
    if (std::isdigit(static_cast<unsigned char>(part[0])) && part.find('x') != std::string::npos) {
      CHECK(shape_of(*plan.device_mesh) == part);
    } else if (part.starts_with("moe ")) {
      std::string shape = part.substr(4, part.find(' ', 4) - 4);
      if (part.find("(pp,ep_shard,ep) =") != std::string::npos)
        shape = part.substr(part.rfind(' ') + 1);
      REQUIRE(plan.moe_mesh);
      bool with_pp = std::ranges::count(shape, 'x') == 2;
      CHECK(shape_of(*plan.moe_mesh, with_pp) == shape);
    } else if (part.starts_with("F ")) {
      std::string text;
      for (const std::string& axis : plan.fsdp_axes) {
        std::string shown = axis == "dp_replicate" ? "rep" : axis == "dp_shard" ? "shard" : "sc";
        text += (text.empty() ? "" : " x ") + shown + " " +
                std::to_string(plan.device_mesh->size(axis));
      }
      CHECK("F " + text == part);
    } else if (part.starts_with("dp = sc = dc = shard")) {
      for (const char* axis : {"dp", "dp_shard_cp", "dp_cp"})
        CHECK(groups_of(plan, axis) == groups_of(plan, "dp_shard"));
    } else if (size_t of = part.find(" of rank 0: "); of != std::string::npos) {
      check_groups(plan, part.substr(0, of), part.substr(of + 12));
    } else {
      size_t space = part.find(' ');
      REQUIRE(space != std::string::npos);
      check_groups(plan, part.substr(0, space), part.substr(space + 1));
      std::istringstream names(part.substr(0, space));
      for (std::string name; std::getline(names, name, '=');) named.insert(full_name(name));
    }
  }
  if (row.name.starts_with("L") || row.name.starts_with("S"))
    return;  // these rows show some axes only
  // Axes of size 1 are left out of a row, and no others.
  for (const MeshAxis& axis : plan.device_mesh->axes()) {
    INFO("axis ", axis.name);
    if (row.name != "70" && row.name != "71") CHECK(named.contains(axis.name) == (axis.size > 1));
  }
}

ErrorCode refusal_of(const Row& row) {
  static const std::map<std::string, ErrorCode> codes = {
      {"11", ErrorCode::dp_replicate_too_large}, {"12", ErrorCode::dp_replicate_not_divisor},
      {"15", ErrorCode::dp_replicate_too_large}, {"19", ErrorCode::world_not_divisible},
      {"20", ErrorCode::world_not_divisible},    {"26", ErrorCode::world_mismatch},
      {"27", ErrorCode::world_mismatch},         {"31", ErrorCode::ep_not_divisor},
      {"32", ErrorCode::ep_not_divisor},         {"38", ErrorCode::ep_not_divisor},
      {"42", ErrorCode::ep_not_divisor},         {"46", ErrorCode::wrong_type},
      {"54", ErrorCode::world_not_divisible},    {"55", ErrorCode::size_not_supported},
      {"56", ErrorCode::size_not_supported},     {"57", ErrorCode::size_not_supported},
      {"60", ErrorCode::world_mismatch},         {"63", ErrorCode::world_mismatch},
      {"64", ErrorCode::size_not_supported},     {"65", ErrorCode::size_not_supported},
      {"66", ErrorCode::size_not_supported},     {"67", ErrorCode::size_not_supported},
      {"68", ErrorCode::size_not_supported},     {"72", ErrorCode::bad_rank_list},
      {"73", ErrorCode::bad_rank_list}};
  auto it = codes.find(row.name);
  return it == codes.end() ? ErrorCode::internal : it->second;
}

// Help lines "set distributed.X_size = N" are applied one at a time: each must make the row plan.
void check_helps(const Row& row, const Error& error) {
  int applied = 0;
  for (const std::string& help : error.helps()) {
    const std::string start = "set distributed.", middle = "_size = ";
    size_t at = help.find(middle);
    if (help.starts_with(start) && at != std::string::npos && help.find(',') == std::string::npos) {
      std::string key = help.substr(start.size(), at - start.size());
      Row mended = row;
      mended.sizes[key == "dp_replicate" ? "rep" : key] = help.substr(at + middle.size());
      INFO("applying: ", help);
      CHECK_NOTHROW(plan_of(mended));
      ++applied;
    }
  }
  INFO("row ", row.name, ": ", error.what());
  if (row.ranks.empty()) CHECK(applied + (error.helps().empty() ? 0 : 1) >= 1);
  CHECK(!error.helps().empty());
}

}  // namespace

TEST_CASE("every worked example of the mesh rules comes out as written") {
  std::vector<Row> all = rows();
  REQUIRE(all.size() == 79);  // 73 numbered rows, S1-S3, L1-L3
  for (const Row& row : all) {
    CAPTURE(row.name);
    CAPTURE(row.result);
    ErrorCode refusal = refusal_of(row);
    if (refusal == ErrorCode::internal) {
      REQUIRE_NOTHROW(check_result(row, plan_of(row)));
      continue;
    }
    try {
      plan_of(row);
      FAIL("planned, but it should be refused");
    } catch (const Error& error) {
      CHECK(code_string(error.code()) == code_string(refusal));
      CHECK(!error.key().empty() == (refusal != ErrorCode::bad_rank_list || !error.key().empty()));
      check_helps(row, error);
    }
  }
}
