// Jobs that verbs write for a person to begin with and to change.
#pragma once

#include <span>
#include <string>

namespace meshwright::cli {

// A line of a table: `value` as TOML, and why it is so.
struct JobLine {
  const char *table, *key;
  std::string value;
  std::string why = {};
};

// `head`: lines of comments. Lines of one table stand together.
std::string job_text(const std::string& head, std::span<const JobLine> lines);

std::string quoted_toml(const std::string& text);

}  // namespace meshwright::cli
