// How far tokenizing is, in lines.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

namespace meshwright::jsonl {

struct Preparation {
  int64_t bytes = 0, total = 0;
};

// Said when it takes long: each second on a terminal, each ten elsewhere.
std::function<void(const Preparation&)> telling_progress(
    std::function<void(const std::string&)> tell);

}  // namespace meshwright::jsonl
