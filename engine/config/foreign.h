// Names that other training programs give to what a configuration here also says: torchtitan's
// TOML, the YAML of Automodel and axolotl, the arguments of TRL, of Hugging Face's Trainer and of
// launch scripts. The error
// for an unknown key, `config explain` and `config migrate` read the same table.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace meshwright::config {

// What `config migrate` does with the value.
enum class Carry : uint8_t {
  as_is,    // the same value under our key
  degree,   // a number of ranks; 0 and below mean "auto"
  seconds,  // seconds there, minutes here
  special,  // migrate.cpp knows what to do
  told,     // our key says the same in another way, so a person has to decide
};

struct ForeignName {
  std::string name;  // "training.steps"; a name without a dot is known in every table
  const char* key;   // ours; "" when nothing here corresponds
  const char* note;  // "" or how the two differ; without a key it is a whole sentence
  Carry carry = Carry::told;
  std::string first =
      {};  // of the names in its row, which mean the same: an older name's newer one
};

std::span<const ForeignName> foreign_names();
// The entry for a dotted key as it was written: first the whole name, then its last part. nullptr:
// not known.
const ForeignName* find_foreign(std::string_view written);
// The entry whose name is the whole of `written`; nullptr: none.
const ForeignName* find_foreign_whole(std::string_view written);
// The entry of a key without its table, in whatever table others have it
// ("tensor_parallel_degree"). nullptr: nowhere, or it means one thing here and another there.
const ForeignName* find_foreign_elsewhere(std::string_view last);
// "optimizer.learning_rate is optimizer.lr here", with the note.
std::string foreign_text(const ForeignName& name, std::string_view written);

}  // namespace meshwright::config
