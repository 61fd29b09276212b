// The configuration of a job, read once: whoever loads the job from it, here, in a rank or in a
// later attempt, gets the same one, whatever has become of the file meanwhile.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/config/config.h"

namespace meshwright::config {

class Reading {
 public:
  // Reads the file. Variables of the environment are read when they are asked for first. A file
  // that cannot be read is told by source().
  explicit Reading(const LoadOptions& options);
  // Of a text; `options.file` only names it.
  Reading(std::string text, const LoadOptions& options);
  // What it says with more overrides behind its own. As Source::load().
  Source source(const std::vector<std::string>& more, Diagnostics& diagnostics) const;
  std::string text() const { return text_.value_or(""); }
  const std::vector<std::string>& sets() const { return options_.sets; }
  void set(std::vector<std::string> sets) { options_.sets = std::move(sets); }
  // The bytes of files that the job names, by the name under which they are asked for.
  void keep(std::string file, std::string bytes) { files_[std::move(file)] = std::move(bytes); }
  const std::map<std::string, std::string>& files() const { return files_; }
  // As bytes, with those files and what was asked of the environment so far; and back. Throws
  // Error(internal).
  std::string bytes() const;
  static Reading of(std::string_view bytes);

 private:
  using Variables = std::map<std::string, std::optional<std::string>>;
  void remember();
  LoadOptions options_;
  std::optional<std::string> text_;  // nullopt: it could not be read
  std::map<std::string, std::string> files_;
  std::shared_ptr<Variables> variables_ = std::make_shared<Variables>();
};

}  // namespace meshwright::config
