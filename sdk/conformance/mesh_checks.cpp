#include "sdk/conformance/mesh_checks.h"

#include <algorithm>
#include <map>
#include <set>
#include <unordered_map>

namespace meshwright::conformance {
namespace {

// The kit's own arithmetic over a mesh's axes, so that the mesh is compared with something else
// than itself.
class Arithmetic {
 public:
  explicit Arithmetic(const Mesh& mesh) {
    for (const MeshAxis& axis : mesh.axes())
      names_.push_back(axis.name), sizes_.push_back(axis.size);
    for (const FlattenedAxis& axis : mesh.flattened()) flattened_[axis.name] = axis.axes;
  }
  std::vector<int64_t> coordinates(int64_t place) const {
    std::vector<int64_t> out(sizes_.size());
    for (size_t i = sizes_.size(); i-- > 0; place /= sizes_[i]) out[i] = place % sizes_[i];
    return out;
  }
  int64_t place(const std::vector<int64_t>& coordinates) const {
    int64_t out = 0;
    for (size_t i = 0; i < sizes_.size(); ++i) out = out * sizes_[i] + coordinates[i];
    return out;
  }
  // Which real axes a name covers, outer first; empty when the mesh does not have them.
  std::vector<size_t> covered(const std::string& name) const {
    std::vector<std::string> parts = {name};
    if (auto it = flattened_.find(name); it != flattened_.end()) parts = it->second;
    std::vector<size_t> out;
    for (const std::string& part : parts) {
      auto it = std::find(names_.begin(), names_.end(), part);
      if (it == names_.end()) return {};
      out.push_back(static_cast<size_t>(it - names_.begin()));
    }
    return out;
  }
  // Row-major index of `coordinates` in the covered axes.
  int64_t index(const std::vector<int64_t>& coordinates, const std::vector<size_t>& axes) const {
    int64_t out = 0;
    for (size_t axis : axes) out = out * sizes_[axis] + coordinates[axis];
    return out;
  }
  int64_t size(const std::vector<size_t>& axes) const {
    int64_t out = 1;
    for (size_t axis : axes) out *= sizes_[axis];
    return out;
  }

 private:
  std::vector<std::string> names_;
  std::vector<int64_t> sizes_;
  std::map<std::string, std::vector<std::string>> flattened_;
};

class PlanChecker {
 public:
  PlanChecker(const Wish& wish, const MeshPlan& plan, const std::string& self, Report& report)
      : wish_(wish), plan_(plan), self_(self), report_(report) {}

  void run() {
    if (!plan_.delegate_to.empty())
      delegation();
    else if (!plan_.device_mesh)
      no_mesh();
    else
      device_mesh();
  }

 private:
  void fail(const std::string& what) { report_.fail(describe(wish_) + ": " + what); }

  // Fails unless `value` is what was asked for.
  void expect(const std::string& what, int64_t value, int64_t wanted) {
    if (value != wanted)
      fail(what + " is " + std::to_string(value) + ", not " + std::to_string(wanted));
  }

  void delegation() {
    if (!text::is_identifier(text::normal(plan_.delegate_to)))
      fail("delegate_to names no strategy: \"" + plan_.delegate_to + "\"");
    if (text::normal(plan_.delegate_to) == text::normal(self_)) fail("it delegates to itself");
    if (plan_.device_mesh || plan_.moe_mesh || !plan_.fsdp_axes.empty())
      fail("a plan that delegates holds a mesh as well");
  }

  void no_mesh() {
    if (plan_.moe_mesh || !plan_.fsdp_axes.empty())
      fail("no device mesh, but an expert mesh or sharding axes");
    const std::pair<const char*, int64_t> sizes[] = {{"tp", wish_.tp},
                                                     {"cp", wish_.cp},
                                                     {"pp", wish_.pp},
                                                     {"ep", wish_.ep},
                                                     {"dp_replicate", wish_.dp_replicate}};
    for (const auto& [name, size] : sizes)
      if (size > 1)
        fail(std::string(name) + " " + std::to_string(size) +
             " was accepted without a mesh that has it");
    expect("dp", plan_.dp, wish_.places());
    if (wish_.dp && *wish_.dp > 0) expect("dp", plan_.dp, *wish_.dp);
  }

  void device_mesh() {
    const Mesh& mesh = *plan_.device_mesh;
    if (!layout(mesh, "device mesh")) return;
    for (const auto& [name, size] : std::initializer_list<std::pair<const char*, int64_t>>{
             {"tp", wish_.tp}, {"cp", wish_.cp}, {"pp", wish_.pp}})
      expect(std::string("size of ") + name, mesh.size(name), std::max<int64_t>(size, 1));
    if (wish_.dp_replicate > 1)
      expect("size of dp_replicate", mesh.size("dp_replicate"), wish_.dp_replicate);
    if (std::optional<int64_t> dp = mesh.find_size("dp")) expect("dp", plan_.dp, *dp);
    int64_t others = mesh.size("tp") * mesh.size("cp") * mesh.size("pp");
    expect("dp * tp * cp * pp", plan_.dp * others, mesh.size());
    if (wish_.dp && *wish_.dp > 0) expect("dp", plan_.dp, *wish_.dp);
    sharding_axes(mesh);
    if (wish_.ep > 1 && !plan_.moe_mesh) fail("ep was accepted, but there is no expert mesh");
    if (wish_.ep <= 1 && plan_.moe_mesh) fail("there is an expert mesh without ep");
    if (plan_.moe_mesh) expert_mesh(mesh);
  }

  // The mesh lays out exactly the ranks asked for, one to one, and every axis splits them into
  // groups its members agree on.
  bool layout(const Mesh& mesh, const std::string& what) {
    Arithmetic arithmetic(mesh);
    std::set<std::string> names;
    int64_t product = 1;
    for (const MeshAxis& axis : mesh.axes()) {
      if (std::find(std::begin(kAxisNames), std::end(kAxisNames), axis.name) ==
          std::end(kAxisNames))
        fail(what + ": \"" + axis.name + "\" is not an axis name");
      if (!names.insert(axis.name).second) fail(what + ": axis " + axis.name + " stands twice");
      if (axis.size < 1)
        fail(what + ": axis " + axis.name + " has size " + std::to_string(axis.size));
      product *= axis.size;
    }
    if (product != wish_.places()) {
      fail(what + ": its axes hold " + std::to_string(product) + " ranks, not " +
           std::to_string(wish_.places()));
      return false;
    }
    std::unordered_map<int64_t, int64_t> place_of;
    for (int64_t place = 0; place < product; ++place) {
      int64_t rank = mesh.rank_at(place);
      std::vector<int64_t> coordinates = mesh.coordinates(rank);
      if (!place_of.emplace(rank, place).second || mesh.place_of(rank) != place ||
          coordinates != arithmetic.coordinates(place) || arithmetic.place(coordinates) != place) {
        fail(what + ": rank " + std::to_string(rank) + " and its coordinates are not one to one");
        return false;
      }
    }
    for (int64_t i = 0; i < product; ++i) {
      int64_t rank = wish_.ranks.empty() ? i : wish_.ranks[static_cast<size_t>(i)];
      if (!place_of.contains(rank)) {
        fail(what + ": rank " + std::to_string(rank) + " has no place");
        return false;
      }
    }
    size_t problems = report_.problem_count();
    for (const MeshAxis& axis : mesh.axes()) groups(mesh, arithmetic, place_of, axis.name, what);
    for (const FlattenedAxis& axis : mesh.flattened()) {
      if (names.contains(axis.name))
        fail(what + ": flattened axis " + axis.name + " has the name of another axis");
      groups(mesh, arithmetic, place_of, axis.name, what);
    }
    return report_.problem_count() == problems;
  }

  void groups(const Mesh& mesh, const Arithmetic& arithmetic,
              const std::unordered_map<int64_t, int64_t>& place_of, const std::string& axis,
              const std::string& what) {
    std::vector<size_t> covered = arithmetic.covered(axis);
    int64_t size = arithmetic.size(covered);
    if (covered.empty() || mesh.find_size(axis) != size) {
      fail(what + ": the size of axis " + axis + " is not that of the axes it covers");
      return;
    }
    std::set<int64_t> seen;
    int64_t count = 0;
    bool sound = true;
    mesh.for_each_group(axis, [&](std::span<const int64_t> group) {
      ++count;
      sound = sound && static_cast<int64_t>(group.size()) == size;
      std::vector<int64_t> first;
      for (size_t i = 0; sound && i < group.size(); ++i) {
        auto place = place_of.find(group[i]);
        if (place == place_of.end() || !seen.insert(group[i]).second) {
          sound = false;
          break;
        }
        std::vector<int64_t> coordinates = arithmetic.coordinates(place->second);
        sound = arithmetic.index(coordinates, covered) == static_cast<int64_t>(i);
        for (size_t c : covered) coordinates[c] = 0;
        if (i == 0) first = coordinates;
        sound = sound && coordinates == first;
      }
      // A few members are asked themselves: they must see the same group and their own place in it.
      for (size_t i : {size_t{0}, group.size() / 2, group.size() - 1})
        if (sound && count <= 3) {
          std::vector<int64_t> own = mesh.group(group[i], axis);
          sound = std::equal(own.begin(), own.end(), group.begin(), group.end()) &&
                  mesh.coordinate(group[i], axis) == static_cast<int64_t>(i);
        }
    });
    if (!sound || static_cast<int64_t>(seen.size()) != mesh.size() || count * size != mesh.size() ||
        mesh.group_count(axis) != count)
      fail(what + ": the groups of axis " + axis +
           " do not split the ranks, or their members do not agree");
  }

  void sharding_axes(const Mesh& mesh) {
    for (const std::string& axis : plan_.fsdp_axes)
      if (!mesh.has_axis(axis)) {
        fail("fsdp_axes names " + axis + ", which the mesh does not have");
        return;
      }
    if (plan_.fsdp_axes.empty()) return;
    Answer<Mesh> sub = ask(
        [&] { return mesh.submesh(std::span(plan_.fsdp_axes), mesh.rank_at(mesh.size() - 1)); });
    if (!sub.value)
      fail("fsdp_axes are no sub-mesh: " + (sub.error ? one_line(*sub.error) : sub.foreign));
  }

  void expert_mesh(const Mesh& mesh) {
    const Mesh& experts = *plan_.moe_mesh;
    std::string names;
    for (const MeshAxis& axis : experts.axes()) names += axis.name + " ";
    if (names != "pp ep_shard ep ") {
      fail("the axes of the expert mesh are " + names + "instead of pp ep_shard ep");
      return;
    }
    if (!layout(experts, "expert mesh")) return;
    expect("size of ep", experts.size("ep"), wish_.ep);
    expect("size of pp in the expert mesh", experts.size("pp"), mesh.size("pp"));
    if (!mesh.has_axis("pp")) return;
    for (int64_t place = 0; place < experts.size(); ++place) {
      int64_t rank = experts.rank_at(place);
      if (experts.coordinate(rank, "pp") == mesh.coordinate(rank, "pp")) continue;
      fail("rank " + std::to_string(rank) +
           " is in another pipeline stage in the expert mesh than in the device mesh");
      return;
    }
  }

  const Wish& wish_;
  const MeshPlan& plan_;
  const std::string& self_;
  Report& report_;
};

}  // namespace

void check_plan(const Wish& wish, const MeshPlan& plan, const std::string& self, Report& report) {
  PlanChecker(wish, plan, self, report).run();
}

}  // namespace meshwright::conformance
