#include "engine/capi/request.h"

#include <algorithm>
#include <cstring>

#include "engine/capi/guard.h"

namespace {

meshwright_request defaults() {
  const meshwright::generate::Request program;
  meshwright_request out{};
  out.size = sizeof out;
  out.max_new = program.max_new;
  out.temperature = program.temperature;
  out.top_k = program.top_k;
  out.top_p = program.top_p;
  out.seed = program.seed;
  return out;
}

}  // namespace

void meshwright_request_init(meshwright_request* request, size_t size) {
  if (request == nullptr) return;
  meshwright_request ours = defaults();
  std::memset(request, 0, size);
  std::memcpy(request, &ours, std::min(size, sizeof ours));
  if (size >= sizeof request->size) request->size = size;
}

namespace meshwright::capi {

generate::Request read_request(const meshwright_request* request) {
  const meshwright_request given =
      read_struct(&needed(request, "request"), defaults(),
                  offsetof(meshwright_request, stop) + sizeof(char*), "meshwright_request");
  generate::Request out;
  if (given.text != nullptr) out.prompt = given.text;
  if (given.token_count > 0) needed(given.tokens, "request.tokens");
  if (given.tokens != nullptr) {
    out.tokens.emplace();
    for (size_t i = 0; i < given.token_count; ++i)
      *out.tokens += (i > 0 ? "," : "") + std::to_string(given.tokens[i]);
  }
  if (given.stop != nullptr) out.stop = given.stop;
  if (given.max_new < 1)
    throw misuse("max_new is " + std::to_string(given.max_new) + ": at least one token is made");
  out.max_new = given.max_new;
  out.temperature = given.temperature;
  out.top_k = given.top_k;
  out.top_p = given.top_p;
  out.seed = given.seed;
  return out;
}

}  // namespace meshwright::capi
