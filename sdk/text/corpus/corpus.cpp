#include "sdk/text/corpus/corpus.h"

#include <memory>

#include "sdk/text/tokenizer/normalize.h"

namespace meshwright::tokenizer {

namespace {

// The ids of one piece.
class Encoding : public PieceWork {
 public:
  Encoding(const Tokenizer& tokenizer, const CorpusOptions& options,
           const std::optional<Tokenizer::Frame>& frame)
      : tokenizer_(tokenizer), options_(options), frame_(frame) {}

  void part(const TextPart& part) override {
    auto add = [&](const std::vector<int64_t>& more) {
      ids.insert(ids.end(), more.begin(), more.end());
    };
    const bool framed = frame_ && options_.special;
    if (framed && part.first) add(frame_->before);
    add(part.first ? tokenizer_.encode(part.text, options_.special && !frame_)
                   : tokenizer_.encode_rest(part.text));
    young += young_characters(part.text);
    if (!part.last) return;
    if (framed) add(frame_->after);
    if (options_.document_end) ids.push_back(*options_.document_end);
  }

  std::vector<int64_t> ids;
  int64_t young = 0;

 private:
  const Tokenizer& tokenizer_;
  const CorpusOptions& options_;
  const std::optional<Tokenizer::Frame>& frame_;
};

}  // namespace

CorpusCounts encode_files(
    const Tokenizer& tokenizer, const std::vector<std::string>& files, const CorpusOptions& options,
    const std::function<void(std::span<const int64_t> ids, int64_t bytes)>& take) {
  CorpusCounts counts;
  const std::optional<Tokenizer::Frame> frame = tokenizer.frame();
  // Files as documents can be cut; a template that repeats the text keeps them whole.
  const WalkOptions walk{options.documents, options.text_key, options.threads, options.piece,
                         frame ? tokenizer.cuts() : Cuts{}};
  const WalkCounts walked = walk_files(
      files, walk, [&](size_t) { return std::make_unique<Encoding>(tokenizer, options, frame); },
      [&](PieceWork& work, int64_t bytes) {
        const auto& piece = static_cast<const Encoding&>(work);
        take(piece.ids, bytes);
        counts.tokens += static_cast<int64_t>(piece.ids.size());
        counts.young += piece.young;
      });
  counts.bytes = walked.bytes;
  counts.documents = walked.documents;
  counts.whole = walked.whole;
  return counts;
}

}  // namespace meshwright::tokenizer
