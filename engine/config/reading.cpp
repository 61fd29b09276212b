#include "engine/config/reading.h"

#include <charconv>
#include <utility>

#include "engine/config/source.h"

namespace meshwright::config {

namespace {

// "5:bytes", whatever bytes they are.
void put(std::string& out, std::string_view text) {
  out.append(std::to_string(text.size())).append(":").append(text);
}

class Parts {
 public:
  explicit Parts(std::string_view bytes) : rest_(bytes) {}
  bool any() const { return !rest_.empty(); }
  std::string next() {
    size_t size = 0;
    const char *begin = rest_.data(), *end = begin + rest_.size();
    const auto [colon, bad] = std::from_chars(begin, end, size);
    if (bad != std::errc() || colon == end || *colon != ':' ||
        size > static_cast<size_t>(end - colon) - 1)
      throw Error(ErrorCode::internal, "the configuration that a rank was handed is damaged");
    std::string out(colon + 1, size);
    rest_.remove_prefix(static_cast<size_t>(colon - begin) + 1 + size);
    return out;
  }

 private:
  std::string_view rest_;
};

}  // namespace

Reading::Reading(const LoadOptions& options) : options_(options), text_("") {
  Diagnostics told_by_source;
  if (!options.file.empty()) text_ = read_configuration(options.file, told_by_source);
  remember();
}

Reading::Reading(std::string text, const LoadOptions& options)
    : options_(options), text_(std::move(text)) {
  remember();
}

void Reading::remember() {
  std::function<std::optional<std::string>(const std::string&)> ask = options_.environment;
  if (!ask) ask = process_environment;
  options_.environment = [known = variables_, ask](const std::string& name) {
    auto found = known->find(name);
    if (found == known->end()) found = known->emplace(name, ask(name)).first;
    return found->second;
  };
}

Source Reading::source(const std::vector<std::string>& more, Diagnostics& diagnostics) const {
  LoadOptions options = options_;
  options.sets.insert(options.sets.end(), more.begin(), more.end());
  return text_ ? Source::parse(*text_, options, diagnostics) : Source::load(options, diagnostics);
}

std::string Reading::bytes() const {
  std::string out;
  put(out, options_.file.string());
  put(out, text());
  put(out, std::to_string(options_.sets.size()));
  for (const std::string& set : options_.sets) put(out, set);
  put(out, std::to_string(files_.size()));
  for (const auto& [file, bytes] : files_) {
    put(out, file);
    put(out, bytes);
  }
  for (const auto& [name, value] : *variables_) {
    put(out, name);
    put(out, value ? "=" + *value : "");
  }
  return out;
}

Reading Reading::of(std::string_view bytes) {
  Parts parts(bytes);
  LoadOptions options;
  options.file = parts.next();
  std::string text = parts.next();
  const std::string count = parts.next();
  for (int64_t left = std::atoll(count.c_str()); left > 0; --left)
    options.sets.push_back(parts.next());
  std::map<std::string, std::string> files;
  const std::string kept = parts.next();
  for (int64_t left = std::atoll(kept.c_str()); left > 0; --left) {
    const std::string file = parts.next();
    files[file] = parts.next();
  }
  Reading out(std::move(text), options);
  out.files_ = std::move(files);
  while (parts.any()) {
    const std::string name = parts.next(), value = parts.next();
    out.variables_->emplace(name, value.empty() ? std::nullopt : std::optional(value.substr(1)));
  }
  return out;
}

}  // namespace meshwright::config
