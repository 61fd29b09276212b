// config_fuzz COUNT SEED FILE...: mutates configurations and puts them through the parser and the
// validation, in one process.
//
// The outcome must be "fine" or errors whose exit status is 2; anything else ends the run with the
// seed and the input. Run it under the address and undefined-behaviour sanitizers. An input that
// takes longer than a second fails too.
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "engine/config/config.h"
#include "engine/config/describe.h"
#include "engine/plugins/registry.h"
#include "fuzz.h"
#include "meshwright/strategy.h"

namespace {

using namespace meshwright;

using fuzz::Random;

// clang-format off
const std::vector<std::string> kWords = {
    "[", "]", "[[", "]]", "{", "}", "=", ",", ".", "\"", "'''", "\"\"\"", "#", "\n", "\r\n",
    "true", "false", "none", "\"none\"", "\"auto\"", "nan", "-inf", "0", "-1",
    "9223372036854775807", "-9223372036854775808", "99999999999999999999", "1e308", "1e-320",
    "0x7f", "1979-05-27T07:32:00Z", "${HOME}", "${", "$${", "${A:-b}", "\\u0000", "\\uD800",
    "\xff", std::string(1, '\0'), "\xEF\xBB\xBF", "[distributed]", "[distributed.fsdp2]",
    "[distributed.pipeline]", "[distributed.moe.mp_policy]", "[plugins]", "tp_size = ",
    "dp_size = ", "strategy = ", "tp_plan = {\"a.*\" = \"colwise\"}",
    "pp_schedule = \"ZBVZeroBubble\"", "module_fqns_per_model_part = [[\"a\"], []]",
    "activation_checkpointing_scope = [\"vision\", \"audio\"]", "betas = [0.9, 0.95]", "lr = ",
    "load = [\"x\"]", "path = [\"/\"]"};
// clang-format on

std::string mutated(std::string text, Random& random) {
  size_t rounds = 1 + random.below(6);
  for (size_t i = 0; i < rounds; ++i) {
    size_t at = random.below(text.size() + 1);
    switch (random.below(9)) {
      case 0:
        if (!text.empty()) text[random.below(text.size())] = static_cast<char>(random.next());
        break;
      case 1:
        text.insert(at, kWords[random.below(kWords.size())]);
        break;
      case 2:
        text.erase(at, random.below(20));
        break;
      case 3: {  // a line again somewhere else
        size_t begin = text.rfind('\n', at == 0 ? 0 : at - 1);
        begin = begin == std::string::npos ? 0 : begin;
        std::string line = text.substr(begin, text.find('\n', begin + 1) - begin);
        text.insert(random.below(text.size() + 1), line);
        break;
      }
      case 4:
        text.insert(at, std::string(1 + random.below(300), "[{(\"'a.="[random.below(8)]));
        break;
      case 5: {  // a number instead of what stands behind an equals sign
        size_t equals = text.find('=', at);
        if (equals == std::string::npos) break;
        size_t end = std::min(text.find('\n', equals), text.size());
        text.replace(equals + 1, end - equals - 1, " " + kWords[15 + random.below(20)]);
        break;
      }
      case 6:
        text.resize(at);
        break;
      case 7:
        if (!text.empty()) {
          char& byte = text[random.below(text.size())];
          byte = static_cast<char>(static_cast<unsigned char>(byte) ^ (1u << random.below(8)));
        }
        break;
      default:
        text.insert(at, std::to_string(static_cast<int64_t>(random.next()) >> random.below(64)));
    }
    if (text.size() > 20000) text.resize(20000);
  }
  return text;
}

[[noreturn]] void broken(uint64_t seed, const std::string& text, const std::string& why) {
  std::ofstream("config_fuzz_failure.toml", std::ios::binary) << text;
  std::fprintf(stderr, "seed %llu: %s; the input is in config_fuzz_failure.toml\n",
               static_cast<unsigned long long>(seed), why.c_str());
  std::exit(1);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) {
    std::fprintf(stderr, "usage: config_fuzz COUNT SEED FILE...\n");
    return 2;
  }
  uint64_t count = std::strtoull(argv[1], nullptr, 10), first = std::strtoull(argv[2], nullptr, 10);
  std::vector<std::string> corpus;
  for (int i = 3; i < argc; ++i) {
    std::ifstream in(argv[i], std::ios::binary);
    corpus.emplace_back((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
    if (corpus.back().empty()) {
      std::fprintf(stderr, "cannot read %s\n", argv[i]);
      return 2;
    }
  }
  // The strategies as they are shipped, loaded once.
  loader::SearchPath search;
  search.standard_places = false;
  search.folders = {MESHWRIGHT_BUILD_DIR "/lib/meshwright/plugins"};
  loader::Registry registry(search);
  std::vector<config::StrategySchema> schemas;
  std::vector<loader::LoadedStrategy> loaded;
  for (const loader::Listing& listing : registry.list()) {
    if (listing.plugin == nullptr) continue;
    for (const loader::StrategyInfo& info : listing.plugin->strategies) {
      schemas.push_back({info.name, info.aliases, info.schema});
      loaded.push_back(registry.create(*listing.plugin, info));
    }
  }
  if (schemas.empty()) {
    std::fprintf(stderr, "no plugins in %s\n", search.folders[0].c_str());
    return 2;
  }

  uint64_t fine = 0, refused = 0;
  double slowest = 0;
  auto begin = std::chrono::steady_clock::now();
  for (uint64_t i = 0; i < count; ++i) {
    Random random{first + i};
    std::string text = mutated(corpus[random.below(corpus.size())], random);
    auto started = std::chrono::steady_clock::now();
    Diagnostics diagnostics;
    config::LoadOptions options;
    options.file = "fuzz.toml";
    if (random.below(8) == 0)
      options.sets.push_back(text.substr(random.below(text.size() + 1), 40));
    config::Source source = config::Source::parse(text, options, diagnostics);
    size_t active = random.below(schemas.size());
    config::Config config = config::resolve(source, schemas, schemas[active].strategy, diagnostics);
    if (diagnostics.ok()) {
      loaded[active].strategy->validate(config.strategy_config(schemas[active]), diagnostics);
      if (config::show_toml(config).empty()) broken(first + i, text, "nothing to show");
    }
    for (const Error& error : diagnostics.errors())
      if (exit_status(error.code()) != 2)
        broken(first + i, text, std::string("exit status is not 2: ") + error.what());
    (diagnostics.ok() ? fine : refused) += 1;
    double seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - started).count();
    slowest = std::max(slowest, seconds);
    if (seconds > 1) broken(first + i, text, "took " + std::to_string(seconds) + " s");
  }
  double total = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  std::printf(
      "%llu mutations from seed %llu: %llu accepted (exit 0), %llu refused (exit 2), slowest %.3f "
      "s, %.0f a second\n",
      static_cast<unsigned long long>(count), static_cast<unsigned long long>(first),
      static_cast<unsigned long long>(fine), static_cast<unsigned long long>(refused), slowest,
      static_cast<double>(count) / total);
  return 0;
}
