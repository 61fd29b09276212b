#include "packed_source.h"

#include <algorithm>
#include <array>
#include <bit>
#include <numeric>
#include <span>
#include <utility>

#include "meshwright/error.h"
#include "row_pieces.h"
#include "sdk/base/files/hash.h"
#include "sdk/base/plain_text.h"
#include "sdk/base/words.h"
#include "sdk/text/tokenizer/normalize.h"
#include "text_source.h"

namespace meshwright::jsonl {

namespace {

constexpr uint32_t kNone = UINT32_MAX;

// A set of numbers below a bound, by bits of bits: the least member from a number on takes a few
// words.
class BitSet {
 public:
  explicit BitSet(size_t bound) {
    do {
      bound = (bound + 63) / 64;
      levels_.emplace_back(bound, 0);
    } while (bound > 1);
  }
  void insert(size_t at) {
    for (std::vector<uint64_t>& level : levels_) {
      level[at / 64] |= uint64_t{1} << (at % 64);
      at /= 64;
    }
  }
  void erase(size_t at) {
    for (std::vector<uint64_t>& level : levels_) {
      level[at / 64] &= ~(uint64_t{1} << (at % 64));
      if (level[at / 64] != 0) return;
      at /= 64;
    }
  }
  // kNone: there is none.
  uint32_t least_from(size_t at) const {
    for (size_t level = 0; level < levels_.size(); ++level) {
      const size_t word = at / 64;
      if (word >= levels_[level].size()) return kNone;
      if (const uint64_t rest = levels_[level][word] >> (at % 64); rest != 0) {
        at += static_cast<size_t>(std::countr_zero(rest));
        while (level-- > 0)
          at = at * 64 + static_cast<size_t>(std::countr_zero(levels_[level][at]));
        return static_cast<uint32_t>(at);
      }
      at = word + 1;
    }
    return kNone;
  }

 private:
  std::vector<std::vector<uint64_t>> levels_;  // bits of the numbers, then of words with any, ...
};

// Packs by their room; of those with equal room the first that came is the first taken.
class Rooms {
 public:
  explicit Rooms(uint32_t room)
      : first_(size_t{room} + 1, kNone),
        last_(size_t{room} + 1, kNone),
        filled_(size_t{room} + 1) {}
  void add(uint32_t pack, uint32_t room) {
    if (pack >= next_.size()) next_.resize(size_t{pack} + 1, kNone);
    next_[pack] = kNone;
    if (first_[room] == kNone) {
      first_[room] = pack;
      filled_.insert(room);
    } else {
      next_[last_[room]] = pack;
    }
    last_[room] = pack;
  }
  // The pack and its room; kNone: none has `length` left.
  std::pair<uint32_t, uint32_t> take(uint32_t length) {
    const uint32_t room = filled_.least_from(length);
    if (room == kNone) return {kNone, 0};
    const uint32_t pack = first_[room];
    first_[room] = next_[pack];
    if (first_[room] == kNone) filled_.erase(room);
    return {pack, room};
  }

 private:
  std::vector<uint32_t> first_, last_, next_;
  BitSet filled_;
};

// Documents with the number of their pack, gathered: each pack keeps the order they came in.
Packs gather(std::span<const uint32_t> order, std::span<const uint32_t> pack_of, uint32_t packs) {
  Packs out;
  out.begins.assign(size_t{packs} + 1, 0);
  for (uint32_t pack : pack_of) ++out.begins[size_t{pack} + 1];
  std::partial_sum(out.begins.begin(), out.begins.end(), out.begins.begin());
  std::vector<uint64_t> next(out.begins.begin(), out.begins.end() - 1);
  out.documents.resize(order.size());
  for (size_t i = 0; i < order.size(); ++i) out.documents[next[pack_of[i]]++] = order[i];
  return out;
}

Packs best_fit(std::span<const uint32_t> lengths, uint32_t room, std::span<const uint32_t> given) {
  // By length, longest first, and in the given order within a length. Lengths lie far from each
  // other in that order: each is read once.
  std::vector<uint32_t> in_order(given.size());
  std::vector<uint64_t> begins(size_t{room} + 2, 0);
  for (size_t i = 0; i < given.size(); ++i) {
    in_order[i] = lengths[given[i]];
    ++begins[size_t{room} - in_order[i] + 1];
  }
  std::partial_sum(begins.begin(), begins.end(), begins.begin());
  std::vector<uint32_t> order(given.size());
  for (size_t i = 0; i < given.size(); ++i) order[begins[room - in_order[i]]++] = given[i];

  Rooms rooms(room);
  std::vector<uint32_t> pack_of(order.size());
  uint32_t packs = 0, length = room;
  for (size_t i = 0; i < order.size(); ++i) {
    while (i == begins[room - length]) --length;  // begins has become the ends
    auto [pack, left] = rooms.take(length);
    if (pack == kNone) {
      pack = packs++;
      left = room;
    }
    pack_of[i] = pack;
    if (left > length) rooms.add(pack, left - length);
  }
  return gather(order, pack_of, packs);
}

Packs sequential(std::span<const uint32_t> lengths, uint32_t room,
                 std::span<const uint32_t> order) {
  Packs out;
  out.documents.assign(order.begin(), order.end());
  uint32_t left = room;
  for (size_t i = 0; i < order.size(); ++i) {
    const uint32_t length = lengths[order[i]];
    if (i > 0 && length > left) {
      out.begins.push_back(i);
      left = room;
    }
    left -= length;
  }
  if (!order.empty()) out.begins.push_back(order.size());
  return out;
}

using Keyed = std::pair<uint64_t, uint32_t>;
constexpr int kBucketBits = 10;
using Ends = std::array<uint32_t, 1U << kBucketBits>;

// A copy of `from` in `to`, ordered by kBucketBits of its keys from bit `shift` on; where each
// bucket ends.
Ends into_buckets(std::span<const Keyed> from, std::span<Keyed> to, int shift) {
  auto bucket = [shift](const Keyed& one) { return (one.first >> shift) % Ends().size(); };
  Ends at{};
  for (const Keyed& one : from) ++at[bucket(one)];
  std::exclusive_scan(at.begin(), at.end(), at.begin(), 0U);
  for (const Keyed& one : from) to[at[bucket(one)]++] = one;
  return at;
}

template <class F>
void for_buckets(const Ends& ends, const F& f) {
  size_t begin = 0;
  for (size_t end : ends) {
    f(begin, end - begin);
    begin = end;
  }
}

// SplitMix64's finaliser (Steele, Lea and Flood 2014): a bijection that looks random.
uint64_t mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

}  // namespace

Packs pack(std::span<const uint32_t> lengths, uint32_t room, Packing packing,
           std::span<const uint32_t> order) {
  switch (packing) {
    case Packing::best_fit:
      return best_fit(lengths, room, order);
    case Packing::sequential:
      return sequential(lengths, room, order);
    case Packing::none:
      break;
  }
  Packs out;
  out.documents.assign(order.begin(), order.end());
  for (size_t i = 1; i <= order.size(); ++i) out.begins.push_back(i);
  return out;
}

std::vector<uint32_t> seeded_order(uint32_t documents, uint64_t seed) {
  // By a key of each that looks random. No two keys are equal.
  const uint64_t start = mix(seed + 0x9e3779b97f4a7c15u);
  std::vector<Keyed> keyed(documents), halfway(documents);
  for (uint32_t i = 0; i < documents; ++i)
    keyed[i] = {mix(start + (uint64_t{i} + 1) * 0x9e3779b97f4a7c15u), i};
  // By their first bits into buckets, and each of these by the next bits: what is a few megabytes
  // apart is slow to write to, and few are left to sort.
  constexpr int kFirst = 64 - kBucketBits, kNext = kFirst - kBucketBits;
  for_buckets(into_buckets(keyed, halfway, kFirst), [&](size_t begin, size_t count) {
    const std::span<Keyed> out = std::span(keyed).subspan(begin, count);
    for_buckets(into_buckets(std::span(halfway).subspan(begin, count), out, kNext),
                [&](size_t at, size_t few) {
                  const std::span<Keyed> bucket = out.subspan(at, few);
                  if (few > 1) std::sort(bucket.begin(), bucket.end());
                });
  });
  std::vector<uint32_t> out(documents);
  std::transform(keyed.begin(), keyed.end(), out.begin(),
                 [](const auto& one) { return one.second; });
  return out;
}

namespace {

std::string percent(int64_t part, int64_t whole) {
  return text::format(
      "%.1f%%", whole == 0 ? 0.0 : 100 * static_cast<double>(part) / static_cast<double>(whole));
}

// Target tokens of [begin, end) that have a position before them.
int64_t targets_in(std::span<const Run> runs, uint32_t begin, uint32_t end) {
  int64_t out = 0;
  for (const Run& run : runs)
    if (const uint32_t from = std::max(run.begin, begin + 1), to = std::min(run.end, end);
        from < to)
      out += to - from;
  return out;
}

// "a, b, c, ...": the first three.
std::string first_names(const std::vector<std::string>& files) {
  std::string out;
  for (const std::string& file : std::span(files).first(std::min<size_t>(files.size(), 3)))
    out += (out.empty() ? "" : ", ") + file;
  return out + (files.size() > 3 ? ", ..." : "");
}

}  // namespace

// False where it has no targets.
bool PackedSource::add_part(const Part& part) {
  const int64_t targets = targets_in(store_->targets(part.document), part.begin, part.end);
  if (targets == 0) return false;
  counts_.targets += targets;
  counts_.positions += part.end - part.begin - 1;
  parts_.push_back(part);
  return true;
}

void PackedSource::add_parts(uint32_t document) {
  const auto tokens = static_cast<uint32_t>(store_->tokens(document)),
             most = static_cast<uint32_t>(settings_.seq_len + 1);
  counts_.longest = std::max<int64_t>(counts_.longest, tokens);
  if (store_->weight(document) == 0) {
    ++counts_.of_weight_0;
    return;
  }
  Part part{document, 0, tokens};
  bool learnt = false;
  if (tokens > most) switch (settings_.truncate) {
      case Truncate::drop:
        ++counts_.too_long;
        return;
      case Truncate::right:
        ++counts_.truncated;
        part.end = most;
        break;
      case Truncate::left:
        ++counts_.truncated;
        part.begin = tokens - most;
        break;
      case Truncate::split:
        ++counts_.divided;
        for (; tokens - part.begin > most; part.begin += most - 1)
          learnt |= add_part({document, part.begin, part.begin + most});
        break;
    }
  learnt |= add_part(part);
  ++(learnt ? counts_.used : counts_.without_targets);
}

PackedSource::PackedSource(std::shared_ptr<const TokenStore> store, SampleSettings settings)
    : store_(std::move(store)), settings_(std::move(settings)) {
  check_vocabulary(*store_, settings_.vocab_size, settings_.table, settings_.path);
  parts_.reserve(store_->documents());
  for (uint32_t document = 0; document < store_->documents(); ++document) add_parts(document);
  std::vector<uint32_t> lengths(parts_.size());
  std::transform(parts_.begin(), parts_.end(), lengths.begin(),
                 [](const Part& part) { return part.end - part.begin - 1; });
  if (parts_.empty()) {
    Error error(
        ErrorCode::bad_dataset,
        settings_.path + ": no document is left of " +
            text::counted(store_->origin().counts.rows, settings_.unit) + ": " +
            std::to_string(counts_.without_targets) + " without targets, " +
            std::to_string(counts_.too_long) +
            " longer than seq_len + 1 = " + std::to_string(settings_.seq_len + 1) + " tokens" +
            (counts_.of_weight_0 > 0 ? ", " + std::to_string(counts_.of_weight_0) + " of weight 0"
                                     : std::string()));
    error.key(settings_.table + ".path");
    if (counts_.too_long > 0)
      error.help("set " + settings_.options + ".truncate = \"right\", or " + settings_.table +
                 ".seq_len = " + std::to_string(counts_.longest - 1));
    else if (counts_.truncated > 0)
      error.help("answers lie behind the cut: set " + settings_.table +
                 ".seq_len = " + std::to_string(counts_.longest - 1) + ", or " + settings_.options +
                 ".truncate = \"left\"");
    if (const std::string roles = tell_roles(store_->origin().counts); !roles.empty())
      error.help(roles + "; an answer is a message whose role is \"assistant\"");
    else if (settings_.truncate == Truncate::split)
      error.help("name more data: a document of one token predicts nothing");
    else if (counts_.of_weight_0 > 0 && counts_.without_targets == 0)
      error.help("give rows a weight above 0, or leave " + settings_.options +
                 ".fields.weight out");
    else if (error.helps().empty())
      error.help(
          "what is learnt are messages whose role is \"assistant\", with a content and without "
          "\"weight\": 0: meshwright dataset show FILE --row 0");
    throw error;
  }
  packs_ = pack(lengths, static_cast<uint32_t>(settings_.seq_len), settings_.packing,
                seeded_order(static_cast<uint32_t>(lengths.size()), settings_.seed));
}

void PackedSource::read(int64_t sample, const SampleView& out) const {
  if (sample < 0 || sample >= samples())
    throw Error(ErrorCode::internal, "there is no sample " + std::to_string(sample));
  store_->check();
  size_t at = 0;
  int32_t number = 0;
  for (uint32_t index : packs_.pack(sample)) {
    const Part& part = parts_[index];
    std::span<const Run> runs = store_->targets(part.document);
    const float weight = store_->weight(part.document);
    int64_t next = store_->id(part.document, part.begin);
    for (uint32_t token = part.begin + 1; token < part.end; ++token, ++at) {
      while (!runs.empty() && runs.front().end <= token) runs = runs.subspan(1);
      out.tokens[at] = next;
      next = store_->id(part.document, token);
      out.targets[at] = !runs.empty() && runs.front().begin <= token ? next : kNoTarget;
      if (!out.documents.empty()) out.documents[at] = number;
      if (!out.weights.empty()) out.weights[at] = weight;
    }
    ++number;
  }
  // What is left is a document of its own: nothing attends to it, and it has no targets.
  for (; at < out.tokens.size(); ++at) {
    out.tokens[at] = 0;
    out.targets[at] = kNoTarget;
    if (!out.documents.empty()) out.documents[at] = number;
    if (!out.weights.empty()) out.weights[at] = 0;
  }
}

std::string PackedSource::describe() const {
  return settings_.path + ", " + text::counted(store_->origin().counts.rows, settings_.unit) +
         ", " + text::counted(samples(), settings_.packing == Packing::none ? "sample" : "pack");
}

uint64_t fingerprint_of(const TokenStore& store, const SampleSettings& settings) {
  const std::string text = store.origin().key + " " + std::to_string(settings.seq_len) + " " +
                           std::to_string(static_cast<int>(settings.truncate)) + " " +
                           std::to_string(static_cast<int>(settings.packing)) + " " +
                           std::to_string(settings.seed) +
                           // Earlier versions left these out of documents with the same key.
                           (store.origin().counts.own_systems > 0 ? " system" : "") +
                           (store.origin().counts.own_variables > 0 ? " variables" : "") +
                           // And these had other roles in theirs.
                           (store.origin().counts.renamed > 0 ? " roles" : "");
  base::Hash hash;
  hash.add(text.data(), text.size());
  return hash.value();
}

std::vector<std::string> PackedSource::report() const {
  const StoreCounts& met = store_->origin().counts;
  std::vector<std::string> out;
  std::string rows =
      text::counted(met.rows, settings_.unit) + ", " + text::grouped(counts_.used) + " used";
  if (counts_.truncated > 0)
    rows += ", " + text::grouped(counts_.truncated) + " cut to " +
            text::grouped(settings_.seq_len + 1) + " tokens";
  if (counts_.divided > 0)
    rows += ", " + text::grouped(counts_.divided) + " in parts of " +
            text::grouped(settings_.seq_len + 1) + " tokens";
  if (counts_.without_targets > 0)
    rows += ", " + text::grouped(counts_.without_targets) + " left out without targets";
  if (counts_.of_weight_0 > 0)
    rows += ", " + text::grouped(counts_.of_weight_0) + " left out with a weight of 0";
  if (counts_.too_long > 0)
    rows += ", " + text::grouped(counts_.too_long) + " left out as longer than " +
            text::grouped(settings_.seq_len + 1) + " tokens";
  out.push_back(rows + "; " + text::counted(static_cast<int64_t>(store_->tokens()), "token") +
                ", the longest " + settings_.unit + " has " + text::grouped(counts_.longest));
  const int64_t room = samples() * settings_.seq_len;
  std::string packs =
      text::counted(counts_.positions, "position") + ", " +
      percent(counts_.targets, counts_.positions) + " with targets, in " +
      text::counted(samples(), settings_.packing == Packing::none ? "sample" : "pack") + " of " +
      text::grouped(settings_.seq_len) + ", " + percent(counts_.positions, room) + " filled";
  if (settings_.packing != Packing::none)
    packs += text::format(", %.1f documents each",
                          static_cast<double>(counts_.used) / static_cast<double>(samples()));
  out.push_back(packs);
  if (!store_->origin().form.empty()) out.push_back(store_->origin().form);
  if (!settings_.left_out.empty()) {
    out.push_back(text::counted(std::ssize(settings_.left_out), "file") +
                  " left out, hidden or of other names than *.jsonl, *.json and *.parquet: " +
                  first_names(settings_.left_out));
  }
  if (!settings_.empty.empty())
    out.push_back(
        text::counted(std::ssize(settings_.empty), "file") +
        " without contents, empty or a link that leads nowhere: " + first_names(settings_.empty));
  if (met.own_systems > 0)
    out.push_back("the system text of " + text::counted(met.own_systems, "row") +
                  " stands before its messages");
  if (met.own_variables > 0)
    out.push_back("the \"chat_template_kwargs\" of " + text::counted(met.own_variables, "row") +
                  " go to the template");
  if (met.renamed > 0)
    out.push_back(text::counted(met.renamed, "message") +
                  (met.renamed == 1 ? " has a role" : " have roles") +
                  " of another name in the row: human and prompter are user; gpt, bot, model and "
                  "ai assistant; observation tool");
  if (met.columns.all() > 0)
    out.push_back("keys of rows that are not read, with how many rows have them: " +
                  tell_names(met.columns));
  if (const std::string roles = tell_roles(met); !roles.empty()) out.push_back(roles);
  if (met.calls_left_out > 0)
    out.push_back("the chat template does not write " + text::counted(met.calls_left_out, "call") +
                  " of tools: no such call is learnt");
  if (met.tools_left_out > 0)
    out.push_back("the chat template does not write the tools of " +
                  text::counted(met.tools_left_out, "row"));
  if (met.young > 0) out.push_back(tokenizer::tell_young(met.young));
  if (met.kept_as_text > 0)
    out.push_back(text::counted(met.kept_as_text, "special token") +
                  " in contents read as plain text; " + settings_.options +
                  ".special_tokens_in_content = \"parse\" reads them as tokens");
  if (met.open_ends > 0)
    out.push_back("no special token ends " + text::counted(met.open_ends, "answer") +
                  ": the model will not learn to stop there");
  if (met.endless_texts > 0)
    out.push_back("no end token is put behind " + text::counted(met.endless_texts, "text") +
                  ", since the tokenizer's folder names no eos_token that it has: the model will "
                  "not learn to stop there");
  if (met.double_begins > 0)
    out.push_back(text::counted(met.double_begins, "document") +
                  (met.double_begins == 1 ? " begins" : " begin") +
                  " with two beginning-of-text tokens");
  if (!store_->origin().template_hash.empty())
    out.push_back("chat template " + store_->origin().template_hash);
  return out;
}

}  // namespace meshwright::jsonl
