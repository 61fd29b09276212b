// Lists of data sets of another program: one as the path of [dataset], several as [[dataset.mix]],
// and in the same way [validation_dataset] and [[validation_dataset.set]].
#pragma once

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "apps/migrate/migrator.h"

namespace meshwright::config {

struct DataSet {
  std::string name;          // a path, or a name on the hub
  std::string part;          // of it: a split or a configuration
  std::vector<Value> files;  // of this machine; none: it is on the hub
  bool text = false;         // documents of text, else rows
  Place place;
  std::optional<double> weight = {}, epochs = {};
  // Options of [dataset.text] or [dataset.jsonl] with the reasons of guesses, and where they stand.
  struct Wish {
    Leaf from;
    Value value;
    std::string why = {};
  };
  std::map<std::string, Wish> wishes = {};
};

// The files of an item: a path of its own, or those that a reader like "json" is given.
Value files_of(const Value& item);
// What is the same for all programs: the item's path, or id, its files and its part.
DataSet data_set_of(const Value& item);

// Names all of them in that table. `why`: what the other program does with several. False, and
// told, where the data of one alone are none of this machine.
bool read_data_sets(Migrator& m, const std::string& table, std::vector<DataSet> sets,
                    const Leaf& from, const std::string& why);

}  // namespace meshwright::config
