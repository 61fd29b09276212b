#include "engine/data/token_files.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <exception>
#include <limits>
#include <mutex>
#include <thread>
#include <type_traits>

#include "sdk/base/counts.h"
#include "sdk/base/files/hash.h"
#include "sdk/base/helpers.h"

namespace meshwright::data {

namespace {

// Linux allows a process 65,530 mappings; a corpus may have more files. Files beyond this number
// are mapped for each read.
constexpr size_t kMaxMapped = 4096;

// Returns use(T()) with the C++ type of the tokens.
template <class Use>
auto with_type(TokenType type, Use&& use) {
  switch (type) {
    case TokenType::uint8:
      return use(uint8_t{});
    case TokenType::int8:
      return use(int8_t{});
    case TokenType::uint16:
      return use(uint16_t{});
    case TokenType::int16:
      return use(int16_t{});
    case TokenType::uint32:
      return use(uint32_t{});
    case TokenType::int32:
      return use(int32_t{});
    case TokenType::int64:
      return use(int64_t{});
  }
  throw Error(ErrorCode::internal, "a type of tokens that is not known");
}

}  // namespace

int64_t token_width(TokenType type) {
  return with_type(type, [](auto token) { return static_cast<int64_t>(sizeof token); });
}

TokenFiles::TokenFiles(const DatasetConfig& config, TokenType type, std::string advice)
    : table_(config.table),
      kind_(config.kind),
      advice_(std::move(advice)),
      type_(type),
      vocab_(config.vocab_size > 0 ? config.vocab_size : INT64_MAX) {
  seq_len_ = config.seq_len;
}

void TokenFiles::add(base::MappedFile file, int64_t offset, int64_t count) {
  if (parts_.size() >= kMaxMapped) file.unmap();
  parts_.push_back({std::move(file), offset, tokens_, count});
  tokens_ += count;
}

std::string TokenFiles::describe() const {
  std::string out = parts_.size() == 1
                        ? parts_[0].file.path()
                        : text::grouped(static_cast<int64_t>(parts_.size())) + " files";
  if (kind_ == "text") return out + ", " + text::grouped(tokens_) + " bytes";
  return out + ", " + text::grouped(tokens_) + " tokens of " + std::to_string(token_width(type_)) +
         " bytes";
}

// All sizes, and 256 blocks of up to 4 KiB spread over the stream: every byte of a small data set.
uint64_t TokenFiles::fingerprint() const {
  int64_t width = token_width(type_), block = 4096 / width,
          blocks = std::min<int64_t>(256, (tokens_ + block - 1) / block);
  base::Hash hash;
  hash.add(kind_.data(), kind_.size());
  hash.add(static_cast<int64_t>(type_));
  for (const Part& part : parts_) hash.add(part.count);
  for (int64_t i = 0; i < blocks; ++i) {
    int64_t begin = blocks < 256 ? i * block : (tokens_ - block) / 255 * i;
    visit(begin, std::min(block, tokens_ - begin),
          [&](const Part&, const std::byte* bytes, int64_t, int64_t count, int64_t) {
            hash.add(bytes, static_cast<size_t>(count * width));
          });
  }
  return hash.value();
}

template <class Use>
void TokenFiles::visit(int64_t begin, int64_t count, Use&& use) const {
  auto after = std::upper_bound(parts_.begin(), parts_.end(), begin,
                                [](int64_t place, const Part& p) { return place < p.begin; });
  int64_t width = token_width(type_);
  for (auto part = after - 1; count > 0; ++part) {
    int64_t first = begin - part->begin, take = std::min(count, part->count - first);
    auto apply = [&](const base::MappedFile& file) {
      use(*part, file.bytes().data() + part->offset + first * width, first, take, begin);
    };
    if (part->file.bytes().empty()) {
      base::MappedFile again(part->file.path(), ErrorCode::bad_dataset);
      if (again.size() != part->file.size())
        throw Error(ErrorCode::bad_dataset,
                    again.path() + ": has " + std::to_string(again.size()) + " bytes now; it had " +
                        std::to_string(part->file.size()) + " when it was opened");
      apply(again);
    } else {
      part->file.check_size();
      apply(part->file);
    }
    begin += take;
    count -= take;
  }
}

template <class T>
void TokenFiles::decode(int64_t begin, int64_t count, int64_t* out) const {
  // Of several tokens outside of the vocabulary the largest is told: a vocabulary that has it has
  // them all.
  struct Bad {
    const Part* part = nullptr;
    int64_t index = 0, id = 0;
  } bad;
  visit(begin, count,
        [&](const Part& part, const std::byte* bytes, int64_t first, int64_t take, int64_t place) {
          for (int64_t i = 0; i < take; ++i) {
            T token;
            std::memcpy(&token, bytes + i * static_cast<int64_t>(sizeof token), sizeof token);
            int64_t id = token;  // NOLINT(bugprone-signed-char-misuse): int8 tokens are signed
            if ((id < 0 || id >= vocab_) && (bad.part == nullptr || (id >= vocab_ && id > bad.id)))
              bad = {&part, first + i, id};
            out[place - begin + i] = id;
          }
        });
  if (bad.part != nullptr) bad_token(*bad.part, bad.index, bad.id);
}

void TokenFiles::tokens_at(int64_t begin, int64_t count, int64_t* out) const {
  with_type(type_, [&](auto token) { decode<decltype(token)>(begin, count, out); });
}

void TokenFiles::check_tokens(int64_t budget) const {
  with_type(type_, [&](auto token) { look<decltype(token)>(budget); });
}

template <class T>
void TokenFiles::look(int64_t budget) const {
  if (std::is_unsigned_v<T> &&
      static_cast<uint64_t>(std::numeric_limits<T>::max()) < static_cast<uint64_t>(vocab_))
    return;
  constexpr int64_t kBlock = (int64_t{1} << 20) / static_cast<int64_t>(sizeof(T));
  const int64_t all = (tokens_ + kBlock - 1) / kBlock,
                most = std::max<int64_t>(1, budget / static_cast<int64_t>(sizeof(T)) / kBlock),
                blocks = std::min(all, most);
  std::atomic<int64_t> next = 0, bad = INT64_MAX;
  std::mutex mutex;
  std::exception_ptr failure;
  auto work = [&] {
    try {
      // Blocks are taken in order, so somebody looks at the first that has a wrong token.
      for (int64_t i; (i = next++) < blocks && bad == INT64_MAX;) {
        int64_t begin = blocks == all ? i * kBlock
                                      : static_cast<int64_t>(static_cast<double>(tokens_ - kBlock) /
                                                             static_cast<double>(blocks - 1) *
                                                             static_cast<double>(i));
        if (blocks == 1) begin = 0;
        visit(begin, std::min(kBlock, tokens_ - begin),
              [&](const Part&, const std::byte* bytes, int64_t, int64_t count, int64_t place) {
                T low = 0, high = 0;
                for (int64_t j = 0; j < count; ++j) {
                  T token;
                  std::memcpy(&token, bytes + j * static_cast<int64_t>(sizeof token), sizeof token);
                  low = std::min(low, token);
                  high = std::max(high, token);
                }
                if (static_cast<int64_t>(low) >= 0 && static_cast<int64_t>(high) < vocab_) return;
                for (int64_t seen = bad; place < seen && !bad.compare_exchange_weak(seen, place);) {
                }
              });
      }
    } catch (...) {
      std::lock_guard lock(mutex);
      failure = std::current_exception();
    }
  };
  {
    const auto threads = std::min<int64_t>({blocks, 4, std::thread::hardware_concurrency()});
    const auto others =
        detail::helpers(static_cast<size_t>(std::max<int64_t>(threads - 1, 0)), [&] { work(); });
    work();
  }
  if (failure) std::rethrow_exception(failure);
  if (bad == INT64_MAX) return;
  std::vector<int64_t> tokens(static_cast<size_t>(std::min(kBlock, tokens_ - bad)));
  decode<T>(bad, static_cast<int64_t>(tokens.size()), tokens.data());  // throws
}

void TokenFiles::bad_token(const Part& part, int64_t index, int64_t token) const {
  Error error(ErrorCode::bad_token,
              part.file.path() + ": the token at byte " +
                  std::to_string(part.offset + index * token_width(type_)) + " is " +
                  std::to_string(token) + ", but the model's vocabulary has " +
                  (vocab_ == INT64_MAX ? std::string("no negative") : std::to_string(vocab_)) +
                  " entries");
  error.key(table_ + ".path");
  if (token >= 0)
    error.help("use a model whose config.json has a vocab_size above " + std::to_string(token) +
               ", or its own tokenizer's ids");
  if (!advice_.empty()) error.help(advice_);
  throw error;
}

}  // namespace meshwright::data
