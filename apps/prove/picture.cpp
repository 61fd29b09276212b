#include "apps/prove/picture.h"

#include <algorithm>
#include <array>
#include <boost/json/array.hpp>
#include <cctype>
#include <set>
#include <string_view>

#include "sdk/base/words.h"

namespace meshwright::prove {

namespace json = boost::json;

namespace {

using Part = Picture::Part;
constexpr Part kParts[] = {Part::forward, Part::backward, Part::gradients};
constexpr const char* kPartNames[] = {"forward", "backward", "gradients"};
constexpr size_t kMostColumns = 16, kMostLines = 40, kNameWidth = 44;

std::string parent_of(const std::string& module) {
  const size_t dot = module.rfind('.');
  return dot == std::string::npos ? "" : module.substr(0, dot);
}

// "model.layers.3.mlp": the layer is "model.layers.3", of the list "model.layers".
struct LayerOf {
  std::string list;
  int64_t number = -1;  // below 0: in none
};
LayerOf layer_of(const std::string& module) {
  size_t begin = 0;
  while (begin < module.size()) {
    const size_t end = std::min(module.find('.', begin), module.size());
    const std::string_view part = std::string_view(module).substr(begin, end - begin);
    if (begin > 0 && part.size() < 7 && !part.empty() &&
        std::ranges::all_of(part, [](unsigned char c) { return std::isdigit(c) != 0; }))
      return {module.substr(0, begin - 1), std::stoll(std::string(part))};
    begin = end + 1;
  }
  return {};
}

// What is worst on each rank.
void merge(std::string& into, const std::string& other) {
  if (into.size() < other.size()) into.resize(other.size(), Picture::kNotCompared);
  for (size_t r = 0; r < other.size(); ++r)
    if (other[r] == Picture::kWrong || into[r] == Picture::kNotCompared) into[r] = other[r];
}

// A line as it is shown: one module, or a run of layers.
struct Shown {
  std::string name, list;
  int64_t first = -1, last = -1;
  Picture::Line marks;
  bool turned = false;
};

std::vector<Shown> folded(const Picture& picture) {
  const LayerOf turned = layer_of(picture.turned);
  std::vector<Shown> out;
  for (const Picture::Line& line : picture.lines) {
    const LayerOf layer = layer_of(line.module);
    const bool open = layer.number < 0 || (!picture.turned.empty() && layer.list == turned.list &&
                                           layer.number == turned.number);
    if (open) {
      out.push_back({line.module, {}, -1, -1, line, line.module == picture.turned});
      continue;
    }
    if (out.empty() || out.back().list != layer.list || out.back().last != layer.number)
      out.push_back({{}, layer.list, layer.number, layer.number, {}, false});
    for (const Part part : kParts) merge(out.back().marks.of(part), line.of(part));
  }
  std::vector<Shown> runs;
  for (Shown& one : out) {
    Shown* before = runs.empty() ? nullptr : &runs.back();
    if (before != nullptr && one.first >= 0 && before->list == one.list &&
        before->last + 1 == one.first && before->marks.forward == one.marks.forward &&
        before->marks.backward == one.marks.backward &&
        before->marks.gradients == one.marks.gradients)
      before->last = one.last;
    else
      runs.push_back(std::move(one));
  }
  for (Shown& one : runs)
    if (one.first >= 0)
      one.name = one.list + "." + std::to_string(one.first) +
                 (one.last > one.first ? " to " + std::to_string(one.last) : "");
  // Those around the place are what matters.
  if (runs.size() > kMostLines) {
    const auto at = std::ranges::find_if(runs, [](const Shown& one) { return one.turned; });
    const auto place = static_cast<size_t>(at == runs.end() ? 0 : at - runs.begin());
    const size_t from =
        std::min(place > kMostLines / 2 ? place - kMostLines / 2 : 0, runs.size() - kMostLines);
    runs = std::vector<Shown>(runs.begin() + static_cast<int64_t>(from),
                              runs.begin() + static_cast<int64_t>(from + kMostLines));
  }
  return runs;
}

// Ranks of which everything shown is alike share a column, where all of them would be too many.
std::vector<std::vector<size_t>> columns_of(const std::vector<Shown>& lines, size_t ranks,
                                            size_t most) {
  std::vector<std::vector<size_t>> out;
  auto same = [&](size_t a, size_t b) {
    return std::ranges::all_of(lines, [&](const Shown& one) {
      return std::ranges::all_of(kParts, [&](Part part) {
        const std::string& of = one.marks.of(part);
        return of.size() <= std::max(a, b) || of[a] == of[b];
      });
    });
  };
  for (size_t r = 0; r < ranks; ++r) {
    const auto at = ranks <= most ? out.end() : std::ranges::find_if(out, [&](const auto& column) {
      return same(column.front(), r);
    });
    if (at == out.end())
      out.push_back({r});
    else
      at->push_back(r);
  }
  return out;
}

// The coordinate of a column's ranks, "*" where they have several.
std::string label(const std::vector<int64_t>& of_rank, const std::vector<size_t>& ranks) {
  std::set<int64_t> all;
  for (const size_t rank : ranks) all.insert(of_rank.at(rank));
  return all.size() == 1 ? std::to_string(*all.begin()) : "*";
}

// From its end, which tells modules apart.
std::string shortened(const std::string& name, bool unicode) {
  if (name.size() <= kNameWidth) return name;
  const std::string dots = unicode ? "…" : "..";
  return dots + name.substr(name.size() - kNameWidth + (unicode ? 1 : 2));
}

}  // namespace

Picture::Line& Picture::line(const std::string& module, size_t ranks) {
  const std::string none(ranks, kNotCompared);
  auto at = std::ranges::find(lines, module, &Line::module);
  if (at != lines.end()) return *at;
  // Behind the last one that is within its parent.
  const std::string within = parent_of(module) + ".";
  auto place = lines.end();
  for (auto one = lines.begin(); one != lines.end(); ++one)
    if (within.size() > 1 && (one->module + ".").starts_with(within)) place = one + 1;
  return *lines.insert(place, Line{module, none, none, none});
}

void Picture::turn(const std::string& module, Part part) {
  if (!turned.empty()) return;
  turned = module;
  in = part;
}

json::object Picture::json() const {
  json::array marks, of_axes;
  for (const Line& one : lines)
    marks.push_back(json::object{{"module", one.module},
                                 {"forward", one.forward},
                                 {"backward", one.backward},
                                 {"gradients", one.gradients}});
  for (const auto& [name, coordinates] : axes)
    of_axes.push_back(json::object{
        {"axis", name}, {"coordinates", json::array(coordinates.begin(), coordinates.end())}});
  return {{"axes", std::move(of_axes)},
          {"marks", std::move(marks)},
          {"turned", turned},
          {"turned_in", kPartNames[static_cast<size_t>(in)]}};
}

Picture Picture::of(const json::object& from) {
  auto text = [](const json::object& object, const char* key) {
    return std::string(object.at(key).as_string());
  };
  Picture out;
  for (const json::value& value : from.at("axes").as_array()) {
    auto& [name, coordinates] =
        out.axes.emplace_back(text(value.as_object(), "axis"), std::vector<int64_t>());
    for (const json::value& one : value.as_object().at("coordinates").as_array())
      coordinates.push_back(one.to_number<int64_t>());
  }
  for (const json::value& value : from.at("marks").as_array()) {
    const json::object& one = value.as_object();
    out.lines.push_back(
        {text(one, "module"), text(one, "forward"), text(one, "backward"), text(one, "gradients")});
  }
  out.turned = text(from, "turned");
  const std::string part = text(from, "turned_in");
  for (const Part one : kParts)
    if (part == kPartNames[static_cast<size_t>(one)]) out.in = one;
  return out;
}

std::string Picture::text(const report::Style& style) const {
  const std::vector<Shown> shown = folded(*this);
  if (shown.empty()) return {};
  size_t ranks = 0, width = 0;
  for (const Line& one : lines) ranks = std::max(ranks, one.forward.size());
  // Numbers of two digits take room, and a space so as not to run into one another.
  size_t wide = 1;
  for (const auto& [name, of_rank] : axes)
    for (const int64_t one : of_rank) wide = std::max(wide, std::to_string(one).size());
  auto most = [&] { return wide == 1 ? kMostColumns : kMostColumns / (wide + 1); };
  std::vector<std::vector<size_t>> columns = columns_of(shown, ranks, most());
  const bool shared = columns.size() < ranks;
  if (shared) wide = std::to_string(columns.back().front()).size();
  const size_t left_out = columns.size() > most() ? columns.size() - most() : 0;
  columns.resize(columns.size() - left_out);
  for (const Shown& one : shown)
    width = std::max(width, report::display_width(shortened(one.name, style.unicode)));
  for (const auto& [name, coordinates] : axes) width = std::max(width, name.size());
  width = std::max<size_t>(width, 9);  // "from rank"
  const std::string gap = wide > 1 || columns.size() <= 6 ? " " : "";
  const size_t block = std::max<size_t>(columns.size() * (wide + gap.size()) - gap.size(), 9);
  auto row = [&](const std::string& name, const auto& cell) {
    std::string out = "  " + report::pad(name, width);
    for (const Part part : kParts) {
      std::string cells;
      for (size_t c = 0; c < columns.size(); ++c)
        cells += (c == 0 ? "" : gap) + cell(part, columns[c], wide);
      out += "  " + report::pad(cells, block);
    }
    while (out.ends_with(' ')) out.pop_back();
    return out;
  };
  std::string out = "  " + report::pad("", width);
  for (const char* name : kPartNames) out += "  " + report::pad(name, block);
  while (out.ends_with(' ')) out.pop_back();
  out += "\n";
  for (const auto& axis : axes)
    out += report::paint(style, report::Tone::dim,
                         row(axis.first,
                             [&](Part, const std::vector<size_t>& column, size_t cells) {
                               return report::pad_left(label(axis.second, column), cells);
                             })) +
           "\n";
  if (shared)
    out += report::paint(style, report::Tone::dim,
                         row("from rank",
                             [&](Part, const std::vector<size_t>& column, size_t cells) {
                               return report::pad_left(std::to_string(column.front()), cells);
                             })) +
           "\n";
  for (const Shown& one : shown) {
    std::string line = row(
        shortened(one.name, style.unicode),
        [&](Part part, const std::vector<size_t>& column, size_t cells) {
          const std::string& of = one.marks.of(part);
          const char mark = column.front() < of.size() ? of[column.front()] : kNotCompared;
          std::string text(1, mark);
          if (mark == kRight && style.unicode) text = "·";
          if (mark == kWrong) {
            if (one.turned && part == in) text = style.unicode ? "█" : "X";
            text = report::paint(
                style, one.turned && part == in ? report::Tone::red : report::Tone::yellow, text);
          }
          return std::string(cells - 1, ' ') + text;
        });
    if (one.turned) line.replace(0, 2, style.unicode ? "▶ " : "> ");
    out += line + "\n";
  }
  out += std::string("  ") + (style.unicode ? "·" : ".") + " right  x wrong  " +
         (turned.empty() ? "" : std::string(style.unicode ? "█" : "X") + " where it turned");
  if (left_out > 0) out += "  and " + text::counted(static_cast<int64_t>(left_out), "other rank");
  return out + "\n";
}

}  // namespace meshwright::prove
