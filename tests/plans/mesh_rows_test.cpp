// Every worked example of the mesh rules, through the four plugins as they are shipped.
#include "mesh_rows.h"

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
    bool gap = std::find(wanted.begin(), wanted.end(), "..") != wanted.end();
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
      bool with_pp = std::count(shape.begin(), shape.end(), 'x') == 2;
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
