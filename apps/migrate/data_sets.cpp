#include "apps/migrate/data_sets.h"

#include <algorithm>
#include <filesystem>
#include <set>

#include "apps/migrate/trainer_args.h"
#include "sdk/base/plain_text.h"

namespace meshwright::config {
namespace {

constexpr const char* kTextTable = ".text";
constexpr const char* kRowTable = ".jsonl";

std::string text_of(const Value& item, std::initializer_list<const char*> keys) {
  for (const char* key : keys)
    if (const Entry* entry = item.find(key);
        entry != nullptr && entry->value.kind == Value::Kind::string && !is_empty(entry->value))
      return entry->value.text;
  return {};
}

// "rows" of "./data/rows.jsonl.gz", "name_part" of part "part" of "org/name".
std::string short_name(const std::string& path, const std::string& part) {
  std::string out =
      std::filesystem::path(path.ends_with('/') ? path.substr(0, path.size() - 1) : path)
          .filename()
          .string();
  if (const size_t dot = out.find('.'); dot != std::string::npos && dot > 0) out.resize(dot);
  if (!part.empty()) out += "_" + part;
  for (char& c : out)
    if (static_cast<unsigned char>(c) < 0x80 && !text::is_alphanumeric(c) && c != '_' && c != '-')
      c = '_';
  return out.empty() ? "data" : out;
}

std::string unique_name(std::string name, std::set<std::string>& taken) {
  const std::string first = name;
  for (int i = 2; !taken.insert(name).second; ++i) name = first + "_" + std::to_string(i);
  return name;
}

bool on_hub(const DataSet& one) { return one.files.empty(); }

std::string shown_name(const DataSet& one) {
  return one.name + (one.part.empty() ? "" : " (" + one.part + ")");
}

// Options of rows and of texts: what all that a plugin reads agree on goes into its table, of which
// they lose it. What is left is each one's own.
void grant_common_wishes(Migrator& m, const std::string& table, std::vector<DataSet>& sets,
                         const Leaf& from) {
  for (const bool text : {false, true}) {
    std::vector<DataSet*> readers;
    for (DataSet& one : sets)
      if (one.text == text) readers.push_back(&one);
    if (readers.empty()) continue;
    const std::map<std::string, DataSet::Wish> first = readers[0]->wishes;
    for (const auto& [key, wish] : first) {
      const std::string value = to_toml(wish.value);
      if (!std::ranges::all_of(readers, [&](const DataSet* one) {
            auto at = one->wishes.find(key);
            return at != one->wishes.end() && to_toml(at->second.value) == value;
          }))
        continue;
      m.set(table + (text ? kTextTable : kRowTable) + "." + key, wish.value, from, wish.why);
      for (DataSet* one : readers) one->wishes.erase(key);
    }
  }
}

// Whether each has a share of its own that counts; else they are read as they are.
bool all_weigh(const std::vector<DataSet>& sets) {
  return std::ranges::all_of(sets, [](const DataSet& one) { return one.weight.has_value(); });
}

}  // namespace

Value files_of(const Value& item) {
  const Entry *path = item.find("path"), *files = item.find("data_files");
  if (files == nullptr || is_empty(files->value))
    return path == nullptr ? list_of({}) : path->value;
  const bool reader = path == nullptr || path->value.text == "json" || path->value.text == "jsonl";
  if (!reader && !is_path(path->value.text)) return path->value;  // files of a name on the hub
  std::vector<Value> all = items_of(files->value);
  if (!reader)
    for (Value& one : all) one.text = path->value.text + "/" + one.text;
  return list_of(std::move(all));
}

DataSet data_set_of(const Value& item) {
  DataSet out;
  out.place = item.place;
  if (!item.is_table()) {
    out.name = item.text;
    if (is_path(item.text)) out.files = {item};
    return out;
  }
  out.name = text_of(item, {"path", "id", "dataset_name"});
  const std::string config = text_of(item, {"name", "config"}), split = text_of(item, {"split"});
  out.part = config + (config.empty() || split.empty() || split == "train" ? "" : "_") +
             (split == "train" ? "" : split);
  for (const Value& file :
       items_of(item.find("path") == nullptr ? Value(out.name) : files_of(item)))
    if (file.kind == Value::Kind::string && is_path(file.text)) out.files.push_back(file);
  if (!out.files.empty()) out.part.clear();
  return out;
}

bool read_data_sets(Migrator& m, const std::string& table, std::vector<DataSet> sets,
                    const Leaf& from, const std::string& why) {
  grant_common_wishes(m, table, sets, from);
  const bool mixes = table == "dataset";
  const bool rows = std::ranges::any_of(sets, [](const DataSet& one) { return !one.text; });
  if (sets.size() == 1 && sets[0].files.size() < 2 && !sets[0].epochs) {
    const DataSet& one = sets[0];
    if (one.text)
      m.set(table + ".kind", Value("text"), from, "documents of text");
    else
      m.set(table + ".plugin", Value("jsonl"), from, "rows of JSON Lines");
    if (!on_hub(one))
      m.set(table + ".path", one.files[0], from);
    else if (!one.name.empty())
      m.left(from, std::string(kDataOfHub) + " and name them as " + table + ".path");
    return !on_hub(one);
  }
  if (rows) m.set(table + ".plugin", Value("jsonl"), from, "rows of JSON Lines");
  const std::string list = table + (mixes ? ".mix" : ".set");
  const bool weighs = all_weigh(sets);
  std::set<std::string> taken;
  bool hub = false;
  for (const DataSet& one : sets) {
    std::vector<Value> files = one.files;
    if (files.empty()) files.emplace_back("data/" + short_name(one.name, one.part) + ".jsonl");
    std::string reason = why;
    if (on_hub(one))
      reason = "save the rows of " + shown_name(one) + " there as JSON Lines; " + why;
    else if (files.size() > 1 && weighs)
      reason += "; its weight is divided among its files";
    hub = hub || on_hub(one);
    std::vector<Migrator::Own> own;
    for (const auto& [key, wish] : one.wishes)
      own.push_back(
          {list + (one.text ? kTextTable : kRowTable), key, wish.value, wish.from, wish.why});
    for (const Value& file : files) {
      const std::string& path = file.text;
      std::vector<std::pair<std::string, Value>> keys = {
          {"name", Value(unique_name(short_name(path, ""), taken))}};
      if (one.text) keys.emplace_back("kind", Value("text"));
      keys.emplace_back("path", Value(path));
      if (mixes && weighs)
        keys.emplace_back("weight", number_value(*one.weight / static_cast<double>(files.size())));
      else if (mixes)
        keys.emplace_back("epochs", number_value(one.epochs.value_or(1)));
      m.add(list, std::move(keys), {from.key, one.place, Value(shown_name(one))}, reason, own);
    }
  }
  if (hub) m.want(list + ".path", std::string(kDataOfHub) + " and leave them where each path says");
  return true;
}

}  // namespace meshwright::config
