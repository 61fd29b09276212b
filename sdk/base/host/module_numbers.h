// Numbers that some modules have in place of the others', as peft's rank_pattern and alpha_pattern
// name them.
#pragma once

#include <regex>
#include <string>
#include <string_view>
#include <vector>

#include "meshwright/options.h"

namespace meshwright::base {

// A stranger's regular expression for the whole of a module's name, `before` in front of it, read
// so that no search takes exponential time. Throws Error(conflict), without a key, for one that
// cannot be read, is longer than 512 characters or counts in braces.
std::regex module_expression(const std::string& name, const std::string& before = {});

// Whether no program could read it: a group or a set that does not end, nothing to repeat. False
// for what peft's own language may have although it is not read here.
bool is_broken_expression(const std::string& name);

class ModuleNumbers {
 public:
  ModuleNumbers() = default;  // 0 for all
  // `others`: of modules that no entry of the pattern is for. An entry is a name and a number above
  // 0 as text; the name is a module's, or of its last parts, or a regular expression for these, as
  // in peft. Throws Error(out_of_range), without a key, for other numbers (`whole`: with a
  // fraction), and Error(conflict) for an expression that cannot be read.
  ModuleNumbers(double others, const StringMap& pattern, bool whole);

  // The first entry that is for the module counts. `also`: another name of it.
  double of(std::string_view module, std::string_view also = {}) const;
  // The first entry that is for none of these modules; "": there is none.
  std::string without_module(const std::vector<std::string>& modules) const;

 private:
  struct Entry {
    std::string name;
    std::regex expression;
    double value;
    bool fits(std::string_view module) const;
  };
  double others_ = 0;
  std::vector<Entry> entries_;
};

}  // namespace meshwright::base
