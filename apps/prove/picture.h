// Which modules are right on which ranks, and where that turned. Links no LibTorch.
#pragma once

#include <boost/json/object.hpp>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "sdk/base/terminal/report.h"

namespace meshwright::prove {

struct Picture {
  enum class Part : uint8_t { forward, backward, gradients };
  static constexpr char kRight = '.', kWrong = 'x', kNotCompared = ' ';
  // One module: a character for each rank, or nothing where no rank has that part.
  struct Line {
    std::string module;
    std::string forward, backward, gradients;  // gradients: of its own parameters
    const std::string& of(Part part) const {
      return part == Part::forward ? forward : part == Part::backward ? backward : gradients;
    }
    std::string& of(Part part) { return const_cast<std::string&>(std::as_const(*this).of(part)); }
  };
  std::vector<std::pair<std::string, std::vector<int64_t>>> axes;  // each rank's coordinate
  std::vector<Line> lines;                                         // in the order of the forward
  std::string turned;                                              // the module; "": unknown
  Part in = Part::forward;

  // The line of a module, made beside its parent where there is none.
  Line& line(const std::string& module, size_t ranks);
  void turn(const std::string& module, Part part);  // the first one counts
  boost::json::object json() const;
  static Picture of(const boost::json::object& json);
  // Modules down, ranks across; layers that are alike are one line, and so are ranks.
  std::string text(const report::Style& style) const;
};

}  // namespace meshwright::prove
