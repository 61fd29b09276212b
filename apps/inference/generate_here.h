// `generate` inside an application: what libmeshwright_engine.so gives to libmeshwright_c.so.
#pragma once

#include <functional>
#include <string>

#include "engine/train/preflight/source.h"

namespace meshwright::generate {

struct GenerateHere {
  Request request;
  std::function<void(const std::string& text)> tell;
  // As TextPieces has it (engine/train/step/sample.h), on every rank.
  std::function<void(int64_t id, const std::string& text)> token;
};

// Collective: joins the ranks, loads, writes and leaves. Throws Error, which the other ranks have
// been told of.
void generate_here(const GenerateHere& here);

}  // namespace meshwright::generate
