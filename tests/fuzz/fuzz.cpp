#include "fuzz.h"

#include <malloc.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <new>
#include <vector>

extern "C" {
// Present under a sanitizer only.
__attribute__((weak)) void __sanitizer_set_death_callback(
    void (*callback)());  // NOLINT(bugprone-reserved-identifier)
}

namespace {

std::atomic<size_t> live{0}, base{0}, most{0}, single{0};
volatile uint64_t current_seed = 0;

void note(void* at, size_t size) {
  size_t now = live += malloc_usable_size(at);
  if (now > most) most = now;
  if (size > single) single = size;
}

void* take(size_t size, size_t alignment) {
  void* at = alignment <= alignof(std::max_align_t)
                 ? std::malloc(size == 0 ? 1 : size)
                 : std::aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment);
  if (at == nullptr) throw std::bad_alloc();
  note(at, size);
  return at;
}

void give(void* at) {
  if (at == nullptr) return;
  live -= malloc_usable_size(at);
  std::free(at);
}

void say_seed() {
  char text[80];
  int n = std::snprintf(text, sizeof text, "the input of seed %llu was under way\n",
                        static_cast<unsigned long long>(current_seed));
  [[maybe_unused]] ssize_t ignored = ::write(2, text, static_cast<size_t>(n));
}

void too_slow(int) {
  say_seed();
  constexpr std::string_view kText = "it took more than a minute, or waited for ten\n";
  [[maybe_unused]] ssize_t ignored = ::write(2, kText.data(), kText.size());
  ::_exit(1);
}

}  // namespace

void* operator new(size_t size) { return take(size, 0); }
void* operator new[](size_t size) { return take(size, 0); }
void* operator new(size_t size, std::align_val_t alignment) {
  return take(size, static_cast<size_t>(alignment));
}
void* operator new[](size_t size, std::align_val_t alignment) {
  return take(size, static_cast<size_t>(alignment));
}
// The sanitizer has its own of these two, whose memory is not for give(): std::stable_sort asks for
// it.
void* operator new(size_t size, const std::nothrow_t&) noexcept {
  try {
    return take(size, 0);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}
void operator delete(void* at, const std::nothrow_t&) noexcept { give(at); }
void operator delete(void* at) noexcept { give(at); }
void operator delete[](void* at) noexcept { give(at); }
void operator delete(void* at, size_t) noexcept { give(at); }
void operator delete[](void* at, size_t) noexcept { give(at); }
void operator delete(void* at, std::align_val_t) noexcept { give(at); }
void operator delete[](void* at, std::align_val_t) noexcept { give(at); }
void operator delete(void* at, size_t, std::align_val_t) noexcept { give(at); }
void operator delete[](void* at, size_t, std::align_val_t) noexcept { give(at); }

namespace meshwright::fuzz {

void Memory::reset() {
  base = most = live.load();
  single = 0;
}
size_t Memory::largest() { return single; }
size_t Memory::peak() { return most - base; }

void watch(uint64_t seed) {
  static const bool installed = [] {
    if (__sanitizer_set_death_callback != nullptr) __sanitizer_set_death_callback(say_seed);
    for (int of : {SIGPROF, SIGALRM}) std::signal(of, too_slow);
    return true;
  }();
  static_cast<void>(installed);
  current_seed = seed;
  // A minute of the processor: beside other work it is more of the clock.
  constexpr itimerval kMinute{.it_interval = {}, .it_value = {.tv_sec = 60, .tv_usec = 0}};
  ::setitimer(ITIMER_PROF, &kMinute, nullptr);
  ::alarm(600);
}

namespace {

// clang-format off
constexpr std::string_view kWords[] = {
    "null", "true", "false", "{}", "[]", "\"\"", "{", "}", "[", "]", ",", ":", "[[]]", "[0]",
    "\"a\"", "\"\\u0000\"", "\"\\ud800\"", "\"../x\"", "\"/etc/passwd\"", "\"a/../../b\"",
    "\"\xff\"", "\"F64\"", "\"BF16\"", "\"U8\"", "\"float32\"", "\"int64\"", "\"shape\"",
    "\"dtype\"", "\"data_offsets\"", "\"pieces\"", "\"__metadata__\"", "\"weight_map\"",
    "{\"a\":{\"a\":{}}}"};
constexpr std::string_view kNumbers[] = {
    "0", "1", "-1", "2", "7", "16", "255", "4096", "65536", "1048576", "2147483647", "2147483648",
    "4294967296", "3037000500", "9007199254740993", "4611686018427387904", "9223372036854775807",
    "9223372036854775808", "18446744073709551615", "18446744073709551616", "-9223372036854775808",
    "1e3", "1.5", "-0", "1e999", "0x10", "00"};
// clang-format on

std::vector<std::string> tokens_of(const std::string& text) {
  std::vector<std::string> out;
  for (size_t at = 0; at < text.size();) {
    size_t end = at + 1;
    if (text[at] == '"') {
      while (end < text.size() && text[end] != '"') end += text[end] == '\\' ? 2 : 1;
      end = std::min(end + 1, text.size());
    } else if (std::strchr("{}[],: \n", text[at]) == nullptr) {
      while (end < text.size() && std::strchr("{}[],: \n\"", text[end]) == nullptr) ++end;
    }
    out.push_back(text.substr(at, end - at));
    at = end;
  }
  return out;
}

bool is_number(const std::string& token) {
  return !token.empty() && (token[0] == '-' || (token[0] >= '0' && token[0] <= '9'));
}

// Where the object or list that begins at `at` ends; any other token is one.
size_t end_of_value(const std::vector<std::string>& tokens, size_t at) {
  int depth = 0;
  for (size_t i = at; i < tokens.size(); ++i) {
    if (tokens[i] == "{" || tokens[i] == "[") ++depth;
    if (tokens[i] == "}" || tokens[i] == "]") --depth;
    if (depth <= 0) return i + 1;
  }
  return tokens.size();
}

std::string other_number(const std::string& number, Random& random) {
  int64_t value = std::strtoll(number.c_str(), nullptr, 10);
  auto sum = [&](uint64_t by) {
    return std::to_string(static_cast<int64_t>(static_cast<uint64_t>(value) + by));
  };
  switch (random.below(6)) {
    case 0:
      return sum(1);
    case 1:
      return sum(~uint64_t{0});
    case 2:
      return sum(static_cast<uint64_t>(value));
    case 3:
      return std::to_string(static_cast<int64_t>(random.next() >> random.below(64)));
    default:
      return std::string(kNumbers[random.below(std::size(kNumbers))]);
  }
}

void mutate(std::vector<std::string>& tokens, Random& random) {
  using Difference = std::vector<std::string>::difference_type;
  auto at = [&](size_t i) { return tokens.begin() + static_cast<Difference>(i); };
  size_t i = random.below(tokens.size()), j = random.below(tokens.size());
  switch (random.below(10)) {
    case 0:
    case 1:
    case 2:  // the next number becomes another one, or one that stands elsewhere
      while (i < tokens.size() && !is_number(tokens[i])) ++i;
      while (j < tokens.size() && !is_number(tokens[j])) ++j;
      if (i < tokens.size())
        tokens[i] =
            j < tokens.size() && random.one_in(3) ? tokens[j] : other_number(tokens[i], random);
      break;
    case 3:
      tokens[i] = tokens[j];
      break;
    case 4:
      std::swap(tokens[i], tokens[j]);
      break;
    case 5:
      tokens[i] = kWords[random.below(std::size(kWords))];
      break;
    case 6: {  // a value again, somewhere else
      std::vector<std::string> value(at(i), at(end_of_value(tokens, i)));
      if (value.size() < 2000) tokens.insert(at(j), value.begin(), value.end());
      break;
    }
    case 7:
      tokens.erase(at(i), at(end_of_value(tokens, i)));
      break;
    case 8:  // one element more: a comma and what stands before it
      while (i < tokens.size() && tokens[i] != ",") ++i;
      if (i > 0 && i < tokens.size()) tokens.insert(at(i), {",", std::string(tokens[i - 1])});
      break;
    default: {  // deeper
      size_t levels = random.one_in(10) ? 3000 : 1 + random.below(10);
      tokens[i] =
          std::string(levels, '[') + tokens[i] + std::string(random.one_in(2) ? levels : 0, ']');
    }
  }
  if (tokens.empty()) tokens.emplace_back("{}");
}

}  // namespace

std::string mutated_json(std::string text, Random& random) {
  std::vector<std::string> tokens = tokens_of(text);
  if (tokens.empty()) tokens.emplace_back("{}");
  for (size_t rounds = random.one_in(2) ? 1 : 1 + random.below(4); rounds > 0; --rounds)
    mutate(tokens, random);
  text.clear();
  for (const std::string& token : tokens) text += token;
  return random.one_in(8) ? mutated_bytes(std::move(text), random) : text;
}

std::string mutated_bytes(std::string bytes, Random& random) {
  for (size_t rounds = 1 + random.below(3); rounds > 0; --rounds) {
    size_t at = random.below(bytes.size() + 1);
    switch (random.below(6)) {
      case 0:
        if (!bytes.empty()) bytes[random.below(bytes.size())] = static_cast<char>(random.next());
        break;
      case 1:
        if (!bytes.empty()) {
          char& byte = bytes[random.below(bytes.size())];
          byte = static_cast<char>(static_cast<unsigned char>(byte) ^ (1u << random.below(8)));
        }
        break;
      case 2:
        bytes.erase(at, random.below(30));
        break;
      case 3:
        bytes.insert(at, bytes.substr(random.below(bytes.size() + 1), random.below(60)));
        break;
      case 4:
        bytes.insert(at, random.below(40), static_cast<char>(random.next()));
        break;
      default:
        if (random.one_in(3)) bytes.resize(at);
    }
  }
  return bytes;
}

}  // namespace meshwright::fuzz
